"""Published autoencoders, by their names in the sae-lens package."""

from __future__ import annotations

from typing import Any

from excise.errors import InputError
from excise.sae.folder import Sae, from_parts


def load_from_lens(name: str) -> Sae:
    """``saelens:RELEASE/ID``, such as saelens:gemma-scope-2b-pt-res-canonical/layer_12/width_16k/canonical.

    Raises:
        InputError: sae-lens is not installed, does not know the name, or cannot fetch it.
    """
    release, _, id = name.removeprefix("saelens:").partition("/")
    if not release or not id:
        raise InputError(f"{name}: expected saelens:RELEASE/ID, such as saelens:gemma-scope-2b-pt-res-canonical/layer_12/width_16k/canonical")
    try:
        from sae_lens import SAE  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(f'{name}: reading published SAEs needs sae-lens: pip install "excise[sae]", or give a folder') from None
    try:
        loaded: Any = SAE.from_pretrained(release, id)
    except (ValueError, KeyError, OSError) as error:
        raise InputError(f"{name}: sae-lens cannot load it ({' '.join(str(error).split())[:300]})") from None
    return from_lens(loaded[0] if isinstance(loaded, tuple) else loaded, name)


def from_lens(sae: Any, source: str) -> Sae:
    """An SAE object of sae-lens."""
    return from_parts(sae.cfg.to_dict(), dict(sae.state_dict()), source)
