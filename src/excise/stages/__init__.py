"""The steps that methods are made of."""

STAGES: dict[str, str] = {
    "train": "excise.stages.train:Train",
    "add_adapter": "excise.stages.adapters:AddAdapter",
    "suppress_features": "excise.stages.features:SuppressFeatures",
}
