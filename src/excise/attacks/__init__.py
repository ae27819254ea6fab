"""What is tried to bring removed knowledge back."""

ATTACKS: dict[str, str] = {
    "relearn": "excise.attacks.relearn:Relearn",
    "quantise": "excise.attacks.quantise:Quantise",
    "prompts": "excise.attacks.prompts:Prompts",
    "sampling": "excise.attacks.sampling:Sampling",
    "probe": "excise.attacks.probe:Probe",
    "worst_case": "excise.attacks.worst_case:WorstCase",
}
"""Name in a recipe (``attacks: [{name: relearn, ...}]``) -> module and class."""
