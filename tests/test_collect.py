"""One pass per split: what a record holds is what the model says about single, unpadded texts."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import KINDS, Kind, adapted, tiny
from excise.data.encode import Template, encode, encode_prompt
from excise.data.example import Benchmark, Example
from excise.errors import InputError
from excise.evaluation import collect as module
from excise.evaluation import generate as generation
from excise.evaluation import predict
from excise.evaluation.collect import Plan, collect, read_records, write_records
from excise.evaluation.generate import Drawn, alike, generate, left_padded, stop_ids
from excise.evaluation.records import Record, Records, TextScore
from excise.layout import layout_of
from excise.loading import load
from excise.subject import Subject

EVERYTHING = Plan(paraphrase=True, false=True, options=True, generation=True, max_new_tokens=6)

FORGET = (
    Example(
        id="f0",
        prompt="Where was the painter born?",
        answer="The painter was born in Marrow.",
        span="Marrow",
        paraphrased_answer="Marrow is where the painter was born.",
        false_answers=("Elm Lake is where the painter was born.", "The forest is."),
        options=("Marrow", "Elm Lake"),
        gold=0,
        label="where",
        group="painter",
    ),
    Example(id="f1", prompt="Who wrote the book?", answer="  Anna Brandt, in 1931. ", span="Anna Brandt"),
)
RETAIN = (
    Example(id="r0", prompt="Why was the lighthouse opened, and when?", answer="It opened in 1887 because ships were lost.", span="ships were lost"),
    Example(id="r1", prompt="", answer="A grey fox lives in the forest near Elm Lake.", span="Elm Lake"),
)


def benchmark(**more: tuple[Example, ...]) -> Benchmark:
    return Benchmark("tiny", {"forget": FORGET, "retain": RETAIN, **more})


def run(subject: Subject, plans: dict[str, Plan] | None = None, **options: Any) -> Records:
    return collect(subject, benchmark(), plans or {"forget": EVERYTHING, "retain": EVERYTHING}, **{"precision": "float32", **options})


def alone(subject: Subject, example: Example, answer: str) -> TextScore:
    """The model's own forward pass over one text, in float64 from its logits on."""
    text = encode(subject.tokenizer, subject.template, example, answer=answer)
    with torch.no_grad():
        logits = subject.model(input_ids=torch.tensor([text.ids]), use_cache=False).logits[0, text.start - 1 : -1].double()
    target = torch.tensor(text.ids[text.start :])
    logp = torch.log_softmax(logits, -1).gather(-1, target[:, None])[:, 0]
    return TextScore(answer, tuple(logp.tolist()), tuple((logits.argmax(-1) == target).tolist()), bool(example.prompt))


def same(found: TextScore | None, expected: TextScore) -> None:
    assert found is not None
    assert found.text == expected.text
    assert found.logp == pytest.approx(expected.logp, abs=1e-5)
    assert found.hits == expected.hits
    assert found.ended == expected.ended


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_single_texts(kind: Kind) -> None:
    subject = tiny(kind)
    for split, examples in (("forget", FORGET), ("retain", RETAIN)):
        for example, found in zip(examples, run(subject)[split], strict=True):
            assert (found.id, found.prompt, found.answer, found.label, found.group) == (
                *(example.id, example.prompt, example.answer),
                *(example.label, example.group),
            )
            same(found.true, alone(subject, example, example.answer))
            for score, text in zip(found.false, example.false_answers, strict=True):
                same(score, alone(subject, example, text))
            for score, text in zip(found.options, example.options, strict=True):
                same(score, alone(subject, example, text))
            if example.paraphrased_answer:
                same(found.paraphrase, alone(subject, example, example.paraphrased_answer))
            else:
                assert found.paraphrase is None


def test_adapters_count() -> None:
    plain = run(tiny("llama"))["forget"][0].true
    subject = adapted(tiny("llama"))
    found = run(subject)["forget"][0]
    same(found.true, alone(subject, FORGET[0], FORGET[0].answer))
    assert plain is not None
    assert found.true is not None
    assert found.true.logp != plain.logp


def test_batch_size_changes_nothing(tiny_llama: Subject) -> None:
    for one, other in zip(run(tiny_llama, max_tokens=1, generate_batch=1)["forget"], run(tiny_llama)["forget"], strict=True):
        assert one.true is not None
        same(other.true, one.true)
        assert one.generation == other.generation


def test_chunks_of_logits_change_nothing(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tiny_llama)["forget"]
    monkeypatch.setattr(predict, "_CHUNK", 3 * 400)
    for one, other in zip(run(tiny_llama)["forget"], whole, strict=True):
        assert other.true is not None
        same(one.true, other.true)


def test_span_tokens_are_those_of_the_span(tiny_llama: Subject) -> None:
    for split, examples in (("forget", FORGET), ("retain", RETAIN)):
        for example, found in zip(examples, run(tiny_llama)[split], strict=True):
            text = encode(tiny_llama.tokenizer, tiny_llama.template, example)
            ids = [text.ids[text.start + i] for i in found.span_tokens]
            assert example.span in str(tiny_llama.tokenizer.decode(ids))
            assert list(found.span_tokens) == list(range(found.span_tokens[0], found.span_tokens[-1] + 1))
            assert len(ids) < len(text.ids) - text.start


def test_a_plan_asks_for_parts(tiny_llama: Subject) -> None:
    found = run(tiny_llama, {"forget": Plan(true=False, false=True)})["forget"][0]
    assert found.true is None
    assert found.paraphrase is None
    assert found.options == ()
    assert found.generation is None
    assert found.span_tokens == ()
    assert len(found.false) == 2


def test_plain_text_is_scored_from_its_second_token_and_generates_nothing(tiny_llama: Subject) -> None:
    found = run(tiny_llama)["retain"][1]
    assert found.true is not None
    assert not found.true.ended
    assert len(found.true.logp) == len(tiny_llama.tokenizer(RETAIN[1].answer)["input_ids"]) - 1
    assert found.generation is None


# Each text once -------------------------------------------------------------------------------------------------------


def test_a_text_in_two_splits_runs_once(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    prompts: list[int] = []
    run_texts, greedy = module._Run._run_texts, module.generate

    def counted(self: Any, lines: Any, *rest: Any) -> Any:
        texts.extend(text.text for line in lines for text in line)
        return run_texts(self, lines, *rest)

    def counted_generate(subject: Subject, ids: Any, *args: Any, **options: Any) -> list[str]:
        prompts.append(len(ids))
        return greedy(subject, ids, *args, **options)

    monkeypatch.setattr(module._Run, "_run_texts", counted)
    monkeypatch.setattr(module, "generate", counted_generate)
    again = (dataclasses.replace(FORGET[0], id="n0", false_answers=(FORGET[0].paraphrased_answer, "Marrow")),)
    records = collect(tiny_llama, benchmark(near=again), {"forget": EVERYTHING, "near": EVERYTHING}, precision="float32")
    assert len(texts) == len(set(texts)) == 1 + 1 + 2 + 2 + 1
    assert prompts == [2]
    assert records["near"][0].id == "n0"
    assert records["near"][0].true == records["forget"][0].true
    assert records["near"][0].false[1] == records["forget"][0].options[0]
    assert records["near"][0].generation == records["forget"][0].generation


def test_limit_takes_the_first(tiny_llama: Subject) -> None:
    records = run(tiny_llama, limit=1)
    assert [[r.id for r in rows] for rows in records.values()] == [["f0"], ["r0"]]
    with pytest.raises(InputError, match="limit is 0"):
        run(tiny_llama, limit=0)
    with pytest.raises(InputError, match="max_new_tokens is 0"):
        Plan(max_new_tokens=0)


def test_an_unknown_split_is_named(tiny_llama: Subject) -> None:
    with pytest.raises(InputError, match=r"no split 'forgot': did you mean 'forget'"):
        run(tiny_llama, {"forgot": Plan()})


def test_progress_ends_at_the_total(tiny_llama: Subject) -> None:
    seen: list[tuple[str, int, int]] = []
    run(tiny_llama, {"forget": EVERYTHING}, progress=lambda *step: seen.append(step), max_tokens=64, generate_batch=1)
    last = {what: (done, total) for what, done, total in seen}
    assert last == {"forget: scoring": (7, 7), "forget: answering": (2, 2)}


# The model is left as it was, and must be sane ------------------------------------------------------------------------


def test_every_module_is_put_back_into_its_mode(tiny_llama: Subject) -> None:
    tiny_llama.model.train()
    tiny_llama.layers[0].eval()
    before = [m.training for m in tiny_llama.model.modules()]
    settings = tiny_llama.base.generation_config
    run(tiny_llama)
    assert [m.training for m in tiny_llama.model.modules()] == before
    assert tiny_llama.base.generation_config is settings


@pytest.mark.parametrize("plan", [Plan(), Plan(true=False, generation=True)])
def test_a_model_that_predicts_nan_is_refused(tiny_llama: Subject, plan: Plan) -> None:
    tiny_llama.layers[0].mlp.down_proj.weight.data.fill_(torch.inf)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    with pytest.raises(InputError, match=r"NaN or infinity \(split 'forget', example 'f\d'\)"):
        run(tiny_llama, {"forget": plan})


def test_bfloat16_is_close_to_float32(tiny_llama: Subject) -> None:
    exact, rough = run(tiny_llama)["forget"][0].true, run(tiny_llama, precision="bfloat16")["forget"][0].true
    assert exact is not None
    assert rough is not None
    assert rough.logp == pytest.approx(exact.logp, abs=0.2)
    assert rough.logp != exact.logp


# Generation -----------------------------------------------------------------------------------------------------------


def greedy_loop(subject: Subject, ids: list[int], steps: int) -> list[int]:
    """Greedy decoding without cache, padding or generate."""
    new: list[int] = []
    while len(new) < steps:
        with torch.no_grad():
            following = int(subject.model(input_ids=torch.tensor([ids + new]), use_cache=False).logits[0, -1].argmax())
        if following in stop_ids(subject):
            break
        new.append(following)
    return new


@pytest.mark.parametrize("kind", KINDS)
def test_batched_generation_is_single_row_generation(kind: Kind) -> None:
    subject = tiny(kind, seed=3)
    prompts = [
        encode_prompt(subject.tokenizer, subject.template, q)
        for q in ("Who?", "Where was the painter born?", "When did the lighthouse open, and why?")
    ]
    expected = [str(subject.tokenizer.decode(greedy_loop(subject, ids, 8), skip_special_tokens=True)) for ids in prompts]
    assert generate(subject, prompts, 8) == expected
    assert generate(subject, prompts, 8, batch=2) == expected


def test_generation_ends_at_a_stop_token(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = encode_prompt(tiny_llama.tokenizer, tiny_llama.template, "Who?")
    whole = greedy_loop(tiny_llama, ids, 8)
    stop = next(token for token in whole[1:] if token != whole[0])
    monkeypatch.setattr(generation, "stop_ids", lambda subject: (stop,))
    assert generate(tiny_llama, [ids], 8) == [tiny_llama.tokenizer.decode(whole[: whole.index(stop)], skip_special_tokens=True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [True, False])
def test_rows_that_have_ended_are_left_out_and_the_others_say_the_same(kind: Kind, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = tiny(kind, seed=5)
    drawn = torch.Generator().manual_seed(0)
    prompts = [torch.randint(10, 250, (10 + i % 5,), generator=drawn).tolist() for i in range(16)]
    monkeypatch.setitem(globals(), "stop_ids", lambda subject: ())
    stops = tuple({greedy_loop(subject, ids, 16)[2 + i] for i, ids in enumerate(prompts[:10])})
    monkeypatch.setattr(generation, "stop_ids", lambda subject: stops)
    monkeypatch.setitem(globals(), "stop_ids", lambda subject: stops)
    if not kept:  # as if the model kept a cache whose rows cannot be chosen
        monkeypatch.setattr(generation, "DynamicCache", int)
    rows: list[int] = []
    watch = subject.base.register_forward_pre_hook(lambda m, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True)
    said = generate(subject, prompts, 16)
    watch.remove()
    assert len(set(rows)) >= 2, "rows were left out"
    assert rows == sorted(rows, reverse=True)
    wholes = [greedy_loop(subject, ids, 16) for ids in prompts]
    assert len(rows) == max(min(len(whole) + 1, 16) for whole in wholes)
    assert len({len(whole) for whole in wholes}) >= 2
    assert said == [str(subject.tokenizer.decode(whole, skip_special_tokens=True)) for whole in wholes]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [True, False])
def test_what_prompts_begin_with_is_read_once(kind: Kind, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = tiny(kind, seed=5)
    drawn = torch.Generator().manual_seed(0)
    lead = torch.randint(10, 250, (13,), generator=drawn).tolist()
    prompts = [[*lead, *torch.randint(10, 250, (1 + 3 * (i % 4),), generator=drawn).tolist()] for i in range(16)]
    monkeypatch.setitem(globals(), "stop_ids", lambda subject: ())
    stops = tuple({greedy_loop(subject, ids, 12)[1 + i] for i, ids in enumerate(prompts[:10])})
    monkeypatch.setattr(generation, "stop_ids", lambda subject: stops)
    monkeypatch.setitem(globals(), "stop_ids", lambda subject: stops)
    if not kept:
        monkeypatch.setattr(generation, "DynamicCache", int)
    assert layout_of(subject) == "shared"
    read: list[tuple[int, ...]] = []
    watch = subject.embedding.register_forward_pre_hook(lambda m, args: read.append(tuple(args[0].shape)))
    said = generate(subject, prompts, 12)
    watch.remove()
    first = [(1, 13), (16, 10)] if kept else [(1, 13), (16, 23)]
    if kind == "gemma3":  # its window of 8 counts padding too: nothing is shared
        first = [(16, 23), (16, 1)]
    assert read[:2] == first
    assert said == [str(subject.tokenizer.decode(greedy_loop(subject, ids, 12), skip_special_tokens=True)) for ids in prompts]
    assert generate(subject, prompts[:1], 12) == said[:1]


def test_stop_tokens_come_from_template_tokenizer_and_model(tiny_llama: Subject) -> None:
    assert tiny_llama.base.generation_config is not None
    tiny_llama.base.generation_config.eos_token_id = [7, 9]
    assert stop_ids(tiny_llama) == (2, 7, 9)
    tiny_llama.base.generation_config.eos_token_id = None
    assert stop_ids(tiny_llama) == (2,)


def test_settings_that_a_hub_model_ships_do_not_leak_into_greedy_decoding(tiny_llama: Subject) -> None:
    ids = [encode_prompt(tiny_llama.tokenizer, tiny_llama.template, "Who?")]
    expected = generate(tiny_llama, ids, 12)
    settings = tiny_llama.base.generation_config
    assert settings is not None
    settings.repetition_penalty, settings.no_repeat_ngram_size, settings.temperature, settings.top_k = 5.0, 1, 0.7, 20
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert generate(tiny_llama, ids, 12) == expected
    assert tiny_llama.base.generation_config is settings
    assert settings.repetition_penalty == 5.0


def test_prompts_of_a_batch_are_alike() -> None:
    assert alike([30, 100, 50, 49, 60, 25, 24], 3) == [[1, 4, 2], [3, 0, 5], [6]]
    assert alike([10, 4, 10], 9) == [[0, 2], [1]]
    assert alike([], 5) == []


def test_padding_is_masked_by_length_and_not_by_token() -> None:
    ids, mask = left_padded([[5, 2, 6], [2]], pad=2)
    assert ids.tolist() == [[5, 2, 6], [2, 2, 2]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    ids, mask = left_padded([[5, 2, 6], [5, 2]], pad=2, common=1)
    assert ids.tolist() == [[5, 2, 6], [5, 2, 2]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 1]]


@pytest.mark.slow
def test_batched_generation_is_single_row_generation_on_a_real_model(smollm2_folder: Path) -> None:
    subject = load(smollm2_folder)
    questions = ("What is the capital of France?", "Hi!", "Name three rivers of Europe, please, and the cities they flow through.", "What is 2 + 2?")
    prompts = [encode_prompt(subject.tokenizer, subject.template, question) for question in questions]
    assert generate(subject, prompts, 24) == [generate(subject, [prompt], 24)[0] for prompt in prompts]


# On disk --------------------------------------------------------------------------------------------------------------


def test_records_survive_the_disk(tiny_llama: Subject, tmp_path: Path) -> None:
    records = run(tiny_llama)
    write_records(tmp_path, "after", records)
    assert (tmp_path / "records" / "after" / "forget.jsonl").exists()
    assert read_records(tmp_path, "after") == records
    with pytest.raises(InputError, match=r"no records of the phase 'aftr': did you mean 'after'"):
        read_records(tmp_path, "aftr")


def test_redacted_records_hold_no_text(tiny_llama: Subject, tmp_path: Path) -> None:
    records = run(tiny_llama)
    scores = {split: [{"probability": 0.5} for _ in rows] for split, rows in records.items()}
    write_records(tmp_path, "after", records, redact=True, key=b"secret", scores=scores)
    written = "".join(path.read_text() for path in (tmp_path / "records" / "after").iterdir())
    told = [t for e in (*FORGET, *RETAIN) for t in (e.prompt, e.answer.strip(), e.span, e.group, e.paraphrased_answer, *e.false_answers, *e.options)]
    told += [r.generation for rows in records.values() for r in rows if r.generation and len(r.generation) > 3]
    for text in filter(None, told):
        assert text not in written
        assert json.dumps(text)[1:-1] not in written
    with pytest.raises(InputError, match="redacted"):
        read_records(tmp_path, "after")
    kept = read_records(tmp_path, "after", allow_redacted=True)["forget"][0]
    assert kept.true is not None
    assert records["forget"][0].true is not None
    assert (kept.id, kept.label, kept.true.logp) == ("f0", "where", records["forget"][0].true.logp)
    assert json.loads(written.splitlines()[0])["scores"] == {"probability": 0.5}


def test_keyed_hashes_are_the_same_for_the_same_key_only(tmp_path: Path) -> None:
    def prompt(name: str, key: bytes | None) -> str:
        write_records(tmp_path, name, {"forget": [Record("x", "Who?", "Anna")]}, redact=True, key=key)
        return read_records(tmp_path, name, allow_redacted=True)["forget"][0].prompt

    assert prompt("a", b"1") == prompt("b", b"1") != prompt("c", b"2")
    assert prompt("d", None) != prompt("e", None)


EVERY_PART = dataclasses.replace(EVERYTHING, spread=True, gradient=True, samples=3)


def no_more_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("predicted", "generate", "sample", "gradient_norm"):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("the model ran again"))


def test_what_was_said_is_read_from_the_cache(tiny_llama: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = {"forget": EVERY_PART, "retain": EVERYTHING}
    first = run(tiny_llama, plans, cache=tmp_path)
    no_more_work(monkeypatch)
    assert run(tiny_llama, plans, cache=tmp_path) == first
    # a subset, other splits with the same texts and other batch sizes ask for nothing new
    again = run(tiny_llama, {"retain": EVERYTHING, "forget": EVERY_PART}, cache=tmp_path, limit=1, max_tokens=50)
    assert again == {split: rows[:1] for split, rows in first.items()}


def test_the_cache_knows_everything_that_matters(tiny_llama: Subject, tmp_path: Path) -> None:
    def entries() -> tuple[int, int]:
        files = list(tmp_path.iterdir())
        return len(files), sum(len(json.loads(line)) for file in files for line in file.read_text().splitlines())

    plan = Plan(samples=1, generation=True, max_new_tokens=4)
    run(tiny_llama, {"forget": plan}, cache=tmp_path)
    assert entries() == (1, 6)
    changes: list[dict[str, Any]] = [{"samples": 2}, {"temperature": 0.5}, {"top_p": 0.5}, {"seed": 1}]
    for number, change in enumerate(changes, start=1):
        run(tiny_llama, {"forget": dataclasses.replace(plan, **change)}, cache=tmp_path)
        assert entries() == (1, 6 + 2 * number)
    run(tiny_llama, {"forget": dataclasses.replace(plan, max_new_tokens=5)}, cache=tmp_path)
    assert entries() == (1, 18)
    run(tiny_llama, {"forget": Plan(spread=True)}, cache=tmp_path)
    assert entries() == (1, 20)
    run(tiny_llama, {"forget": Plan()}, cache=tmp_path, precision="bfloat16")
    run(dataclasses.replace(tiny_llama, template=Template(system="Be brief.")), {"forget": Plan()}, cache=tmp_path)
    next(tiny_llama.model.parameters()).data.mul_(1.5)
    run(tiny_llama, {"forget": Plan()}, cache=tmp_path)
    assert entries() == (4, 26)


def test_a_line_that_was_cut_short_is_asked_again(tiny_llama: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tiny_llama, {"forget": Plan()}, cache=tmp_path)
    place = next(tmp_path.iterdir())
    place.write_bytes(place.read_bytes()[:-20])
    assert run(tiny_llama, {"forget": Plan()}, cache=tmp_path) == first
    no_more_work(monkeypatch)
    assert run(tiny_llama, {"forget": Plan()}, cache=tmp_path) == first


class Killed(BaseException):
    """What stops a process at once."""


def watch(monkeypatch: pytest.MonkeyPatch, stop: int | None = None) -> list[str]:
    """Notes every batch that the model is asked, and dies before the one after ``stop``."""
    batches: list[str] = []

    def watched(name: str, inner: Any) -> Any:
        def asked(*args: Any, **settings: Any) -> Any:
            if len(batches) == stop:
                raise Killed
            batches.append(name)
            return inner(*args, **settings)

        return asked

    for name in ("predicted", "generate", "sample", "gradient_norm"):
        monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    return batches


@pytest.mark.parametrize("after", range(1, 9))
def test_a_killed_evaluation_loses_one_batch_and_ends_with_the_same_records(
    tiny_llama: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    options: dict[str, Any] = {"max_tokens": 120, "generate_batch": 1}
    plans = {"forget": EVERY_PART, "retain": EVERYTHING}
    undisturbed = run(tiny_llama, plans, **options)
    before = watch(monkeypatch, stop=after)
    with pytest.raises(Killed):
        run(tiny_llama, plans, cache=tmp_path, **options)
    monkeypatch.undo()
    more = watch(monkeypatch)
    assert run(tiny_llama, plans, cache=tmp_path, **options) == undisturbed  # to the bit
    monkeypatch.undo()
    whole = watch(monkeypatch)
    run(tiny_llama, plans, **options)
    assert len(before) + len(more) == len(whole) > after  # nothing was asked twice


def test_a_subset_of_whole_blocks_gives_the_very_same_records(tiny_llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 3)
    some = tuple(dataclasses.replace(FORGET[0], id=str(i), prompt=f"{FORGET[0].prompt} {'Please. ' * (i % 4)}{i}") for i in range(8))
    many = Benchmark("many", {"forget": some, "retain": RETAIN})
    plan = {"forget": dataclasses.replace(EVERYTHING, samples=2)}
    whole = collect(tiny_llama, many, plan, precision="bfloat16")["forget"]
    for size in (3, 6):
        assert list(collect(tiny_llama, many, plan, precision="bfloat16", limit=size)["forget"]) == list(whole[:size])
    # elsewhere the last block has other batches: equal but for rounding
    exact = collect(tiny_llama, many, plan, precision="float32")["forget"]
    part = collect(tiny_llama, many, plan, precision="float32", limit=5)["forget"]
    for one, other in zip(part, exact[:5], strict=True):
        assert (one.id, one.generation) == (other.id, other.generation)
        assert other.true is not None
        same(one.true, other.true)


# More that a plan can ask for ------------------------------------------------------------------------------------------


def test_the_spread_of_predictions(tiny_llama: Subject) -> None:
    found = run(tiny_llama, {"forget": Plan(spread=True, false=True)})["forget"][0]
    for text, answer in ((found.true, FORGET[0].answer), (found.false[1], FORGET[0].false_answers[1])):
        encoded = encode(tiny_llama.tokenizer, tiny_llama.template, FORGET[0], answer=answer)
        with torch.no_grad():
            logits = tiny_llama.model(input_ids=torch.tensor([encoded.ids]), use_cache=False).logits[0, encoded.start - 1 : -1].double()
        logp = torch.log_softmax(logits, -1)
        mean = (logp.exp() * logp).sum(-1)
        deviation = (logp.exp() * logp.square()).sum(-1).sub(mean.square()).sqrt()
        assert text is not None
        assert text.expected == pytest.approx(mean.tolist(), abs=1e-5)
        assert text.deviation == pytest.approx(deviation.tolist(), abs=1e-5)


def test_the_gradient_norm_is_that_of_the_mean_loss(tiny_llama: Subject) -> None:
    found = run(tiny_llama, {"forget": Plan(gradient=True)})["forget"][1].gradient_norm
    text = encode(tiny_llama.tokenizer, tiny_llama.template, FORGET[1])
    labels = torch.tensor([[-100] * text.start + list(text.ids[text.start :])])
    tiny_llama.model(input_ids=torch.tensor([text.ids]), labels=labels, use_cache=False).loss.backward()
    expected = torch.stack([p.grad.norm() for p in tiny_llama.model.parameters() if p.grad is not None]).norm()
    assert found == pytest.approx(float(expected), rel=1e-4)
    tiny_llama.model.zero_grad()
    frozen = next(tiny_llama.model.parameters()).requires_grad_(False)
    assert run(tiny_llama, {"forget": Plan(gradient=True)})["forget"][1].gradient_norm == pytest.approx(found, rel=1e-4)
    assert not frozen.requires_grad
    assert all(p.grad is None for p in tiny_llama.model.parameters())


@pytest.mark.parametrize("top_p", [1.0, 0.6])
def test_tokens_are_drawn_as_often_as_the_model_says(top_p: float) -> None:
    logits = torch.tensor([[2.0, 0.5, -torch.inf, 1.0, -1.0]])
    wanted = torch.softmax(logits / 2.0, -1)[0]
    if top_p < 1:  # the likeliest tokens that together reach .6 are 0 and 3
        wanted = torch.where(torch.tensor([True, False, False, True, False]), wanted, 0.0)
        wanted = wanted / wanted.sum()
    torch.manual_seed(0)
    left = Drawn(2.0, top_p)(torch.zeros(1, 1, dtype=torch.long), logits.expand(20000, 5).contiguous())
    assert torch.equal(left.isfinite().sum(-1), torch.ones(20000, dtype=torch.long))
    share = left.isfinite().float().mean(0)
    assert share[wanted == 0].sum() == 0
    assert (share - wanted).abs().max() < 4 * 0.5 / 20000**0.5


def test_samples_differ_are_reproducible_and_leave_the_random_state_alone(tiny_llama: Subject) -> None:
    plan = {"forget": Plan(true=False, samples=4, max_new_tokens=6)}
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first = run(tiny_llama, plan)["forget"]
    assert torch.equal(torch.get_rng_state(), state)
    assert [len(record.samples) for record in first] == [4, 4]
    assert len(set(first[0].samples)) > 1
    torch.manual_seed(8)
    assert run(tiny_llama, plan)["forget"] == first
    assert run(tiny_llama, {"forget": Plan(true=False, samples=4, max_new_tokens=6, seed=1)})["forget"] != first
    cold = run(tiny_llama, {"forget": Plan(true=False, generation=True, samples=3, max_new_tokens=6, temperature=1e-4)})["forget"]
    assert all(set(record.samples) == {record.generation} for record in cold)


@pytest.mark.parametrize(("settings", "problem"), [({"samples": -1}, "samples"), ({"temperature": 0.0}, "temperature"), ({"top_p": 0.0}, "top_p")])
def test_impossible_sampling_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=f"^{problem} is"):
        Plan(**settings)


def test_an_opening_is_put_into_the_models_mouth(tiny_llama: Subject) -> None:
    opened = (dataclasses.replace(FORGET[0], opening="The painter was"),)
    found = collect(tiny_llama, benchmark(opened=opened), {"forget": EVERYTHING, "opened": EVERYTHING}, precision="float32")
    ids = encode_prompt(tiny_llama.tokenizer, tiny_llama.template, FORGET[0].prompt, "The painter was")
    said = str(tiny_llama.tokenizer.decode(greedy_loop(tiny_llama, ids, 6), skip_special_tokens=True))
    assert found["opened"][0].generation == said
    assert found["opened"][0].opening == "The painter was"
    assert found["forget"][0].opening == ""
    assert found["opened"][0].true == found["forget"][0].true
