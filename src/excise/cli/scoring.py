"""Commands that score a model, or attack it. Everything heavy is imported inside them, so that --help answers at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from excise.cli.options import Baseline, Data, Limit, Out, Overrides, Overwrite, Retrained, app, close, narrator, raise_input


@app.command()
def evaluate(
    model: str,
    suite: Annotated[str, typer.Option(help="Name of the suite: see `excise list suites`.")],
    out: Out,
    data: Data = None,
    retrained: Retrained = None,
    baseline: Baseline = None,
    limit: Limit = None,
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Score any model with a suite, without unlearning anything."""
    from excise.console import out as console
    from excise.console import score_table

    result = _evaluated(model, suite, out, data, retrained, baseline, limit, set_, overwrite)
    console.print(score_table(result["evaluations"], everything=True))
    print(out)


@app.command()
def attack(
    model: str,
    attack: Annotated[list[str], typer.Option("--attack", help="Name of an attack: see `excise list attacks`. May be given several times.")],
    out: Out,
    suite: Annotated[str, typer.Option(help="Name of the suite that judges: see `excise list suites`.")] = "strangers",
    data: Data = None,
    retrained: Retrained = None,
    baseline: Baseline = None,
    limit: Limit = None,
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Try to bring back what a model forgot: relearn, quantise, prompts, sampling, probe, worst_case."""
    close(_evaluated(model, suite, out, data, retrained, baseline, limit, set_, overwrite, attack), out)


def _evaluated(
    model: str,
    suite: str,
    out: Path,
    data: str | None,
    retrained: str | None,
    baseline: str | None,
    limit: int | None,
    settings: list[str] | None,
    overwrite: bool,
    attacks: list[str] | tuple[()] = (),
) -> dict[str, Any]:
    from excise.evaluate_model import evaluate_model

    with narrator() as telling:
        return evaluate_model(
            model,
            suite,
            out,
            data=data,
            retrained=retrained,
            baseline=baseline,
            attacks=attacks,
            limit=limit,
            settings=settings or (),
            overwrite=overwrite,
            narrator=telling,
        )


@app.command()
def attribute(
    model: str,
    question: Annotated[str, typer.Option(help="The question.")],
    answer: Annotated[str, typer.Option(help="The answer whose tokens are scored.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    set_: Overrides = None,
) -> None:
    """Show which tokens of an answer carry the knowledge: phi, delta, entropy, what is selected, weight."""
    from excise.data.example import Example
    from excise.loading import load
    from excise.settings import build, overridden
    from excise.token_scores import attribute as attribute_answers
    from excise.weights import Attribution

    settings = overridden({}, set_)
    attribution = build(Attribution, settings, "attribution")
    if not question.strip() or not answer.strip():
        raise_input("attribute needs a question and an answer that are not empty")
    table = attribute_answers(load(model), [Example("answer", question, answer)], attribution)[0]
    if as_json:
        print(json.dumps({"prompt_tokens": table["prompt_tokens"], "tokens": table["tokens"]}, ensure_ascii=False))
        return
    from excise.console import attribution_table, out

    out.print(attribution_table(table))


@app.command(name="judge-agreement")
def judge_agreement(
    records: Annotated[Path, typer.Argument(help="A file of records (.jsonl), or a run folder.")],
    judges: Annotated[tuple[str, str], typer.Option(help="Two judges by name: see `excise list judges`.")],
    phase: Annotated[Optional[str], typer.Option(help="Of a run folder: before, after, retrained, ... (after).")] = None,  # noqa: UP045
    split: Annotated[Optional[list[str]], typer.Option(help="Of a run folder; may be given several times (forget, retain).")] = None,  # noqa: UP045
    json_: Annotated[Optional[Path], typer.Option("--json", help="Also write the numbers and all disagreements to this file.")] = None,  # noqa: UP045
    limit: Annotated[Optional[int], typer.Option(help="Only the first N records of each split.")] = None,  # noqa: UP045
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Ask again, and keep no verdicts.")] = False,
    set_: Overrides = None,
) -> None:
    """Compare two judges on the answers of a model: agreement, Cohen's kappa, and what they disagree on.

    Settings of a judge: --set judges.endpoint.url=http://127.0.0.1:8000/v1
    """
    from excise.console import out
    from excise.evaluation.judges.agreement import agreement
    from excise.evaluation.judges.compare import build_judges, gather, lines
    from excise.files import cache_folder, write_json
    from excise.run import narrated

    if judges[0] == judges[1]:
        raise_input(f"--judges names {judges[0]!r} twice: two judges are compared (excise.evaluation.judges.agreement.agreement takes any two)")
    first, second = build_judges(judges, set_ or ())
    found = gather(records, phase, split or (), limit)
    with narrator() as telling:
        compared = agreement(found, first, second, cache=None if no_cache else cache_folder() / "verdicts", progress=narrated(telling))
    for line in lines(compared):
        out.print(line, markup=False)
    if json_ is not None:
        write_json(json_, compared.to_json())
