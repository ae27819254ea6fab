"""Giving a model away on the Hugging Face hub: private unless asked, weights as safetensors only, a card with the results."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from excise.errors import InputError
from excise.files import read_json
from excise.hub_card import HUB_ID, Origin, hub_card, origin
from excise.report.result import load_result
from excise.saving import CARD, RECORD

TOKEN = "HF_TOKEN"
CERTIFICATE = ("certificate.json", "certificate.html")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
ADAPTER = "adapter_config.json"
LOCAL = re.compile(r"^(/|~|[A-Za-z]:[\\/])")


@dataclass(frozen=True)
class Parcel:
    """What is uploaded: a name in the repository -> a file here, or text that was made for it."""

    contents: dict[str, Path | str]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Pushed:
    """Where a model went."""

    url: str
    private: bool
    notes: tuple[str, ...]


def push(folder: Path, repository: str, *, public: bool = False, base: str | None = None, message: str = "") -> Pushed:
    """Uploads a saved model or adapter in one commit.

    Args:
        folder: a run folder, or the folder of a saved model.
        repository: owner/name.
        public: make the repository public if it is new; without it an existing public one is refused.
        base: the hub id of the base model, where the record names a local folder.

    Raises:
        InputError: no such model, a pickle in its folder, no token in ``$HF_TOKEN``, a repository that is public, an answer of the hub.
    """
    parcel = pack(folder, base)
    if not HUB_ID.fullmatch(repository) or repository.count("/") != 1:
        raise InputError(f"{repository!r} is not the name of a repository: expected owner/name")
    token = os.environ.get(TOKEN, "").strip()
    if not token:
        raise InputError(f"pushing needs a token with write access in the environment variable {TOKEN} (the hub's settings, Access Tokens)")
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    transport = cast("type[Exception]", HfHubHTTPError.__bases__[0])  # what the hub's HTTP client raises where there is no connection
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)
    operations = [
        CommitOperationAdd(name, str(content) if isinstance(content, Path) else content.encode()) for name, content in parcel.contents.items()
    ]
    try:
        api.create_repo(repository, private=not public, exist_ok=True, repo_type="model")
        private = bool(api.repo_info(repository).private)
        if not private and not public:
            raise InputError(f"{repository} exists and is public: pass --public if the model is to be public, or choose another name")
        done = api.create_commit(repository, operations, commit_message=message or f"A model written by excise {_version(parcel)}".strip())
    except OfflineModeIsEnabled:
        raise InputError("HF_HUB_OFFLINE is set, so nothing can be pushed: unset it") from None
    except (HfHubHTTPError, HFValidationError, ValueError) as error:
        raise InputError(f"the hub refused {repository}: {_said(error, token)}") from None
    except (OSError, RuntimeError, transport) as error:
        raise InputError(f"{repository} could not be pushed: {_said(error, token)}") from None
    return Pushed(str(done.commit_url or done.repo_url), private, parcel.notes)


def pack(folder: Path, base: str | None = None) -> Parcel:
    """Everything that would be uploaded, without a connection."""
    folder = Path(folder)
    run = folder if (folder / "model" / RECORD).is_file() else None
    model = folder / "model" if run else folder
    if not (model / RECORD).is_file():
        raise InputError(f"{folder} is neither a run folder nor a model that excise saved: there is no {RECORD}")
    files = {path.relative_to(model).as_posix(): path for path in sorted(model.rglob("*")) if path.is_file()}
    files = {name: path for name, path in files.items() if not any(part.startswith(".") for part in name.split("/"))}
    if pickles := [name for name in files if name.endswith(PICKLES)]:
        raise InputError(f"{model / pickles[0]} may be a pickle, which can run code when read: only safetensors are pushed; remove it")
    if not any(name.endswith(".safetensors") for name in files):
        raise InputError(f"{model} holds no weights (*.safetensors)")
    record = read_json(model / RECORD)
    from_ = Origin(base, "", "") if base else origin(str(record["base"]))
    changed, notes = _without_places(record, files, base)
    contents: dict[str, Path | str] = {**files, **changed}
    for licence in from_.files:
        contents.setdefault(licence.name, licence)
    certified = run is not None and (run / CERTIFICATE[0]).is_file() and not changed
    if certified and run is not None:
        contents |= {name: run / name for name in CERTIFICATE if (run / name).is_file()}
    elif run is not None and (run / CERTIFICATE[0]).is_file():
        notes = (*notes, f"the certificate stays here: it covers {', '.join(changed)} as they are, with names of local folders")
    contents[CARD] = hub_card(record, from_, load_result(run) if run and (run / "result.json").is_file() else None, certified=certified)
    return Parcel(contents, notes)


def _without_places(record: dict[str, Any], files: dict[str, Path], base: str | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """Files that would tell where things lie on this machine, with names in place of paths."""
    changed: dict[str, str] = {}
    plain = _named(record)
    if base:
        plain["base"] = base
    if plain != record:
        changed[RECORD] = _json(plain)
    if ADAPTER in files:
        config = read_json(files[ADAPTER])
        named = base or (str(record["base"]) if not LOCAL.match(str(record["base"])) else "")
        if not named:
            raise InputError(
                f"the adapter's base is a folder on this machine ({record['base']}), where nobody else finds it: "
                "name it with --base OWNER/NAME, or run with merge=true and push the whole model"
            )
        if config.get("base_model_name_or_path") != named:
            changed[ADAPTER] = _json({**config, "base_model_name_or_path": named})
    notes = (f"paths of this machine are left out of {', '.join(changed)}",) if changed else ()
    return changed, notes


def _named(value: Any) -> Any:
    """The same with the last part in place of every absolute path."""
    if isinstance(value, dict):
        return {key: _named(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_named(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and LOCAL.match(value) and "\n" not in value else value


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _version(parcel: Parcel) -> str:
    content = parcel.contents[RECORD]
    return str((read_json(content) if isinstance(content, Path) else json.loads(content)).get("excise", ""))


def _said(error: BaseException, token: str) -> str:
    """What went wrong and what caused it, in one line and without the token."""
    said = [text for part in (error, error.__cause__) if part is not None and (text := " ".join(str(part).split()))]
    return ": ".join(said).replace(token, "***")[:300] or type(error).__name__
