"""llama.cpp itself on a GGUF file: token ids of texts and logits of rows of tokens.

Run by test_export.py with the Python of an environment of its own, named by EXCISE_TEST_LLAMA_CPP, which holds the packages
llama-cpp-py-sync (the C interface of llama.cpp for cffi), xllamacpp (llama.cpp compiled for older systems) and numpy.
"""

from __future__ import annotations

import importlib.util
import json
import sys

import numpy as np


def library():
    bindings = importlib.import_module("llama_cpp_py_sync._cffi_bindings")

    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or not spec.submodule_search_locations:
        return bindings.ffi, bindings.get_lib()
    return bindings.ffi, bindings.ffi.dlopen(spec.submodule_search_locations[0] + "/xllamacpp.abi3.so")


def main(file: str, job: str, out: str) -> None:
    ffi, lib = library()
    quiet = ffi.callback("void(enum ggml_log_level, const char *, void *)", lambda level, text, data: None)
    lib.llama_log_set(quiet, ffi.NULL)
    lib.llama_backend_init()
    with open(job, encoding="utf-8") as opened:
        wanted = json.load(opened)
    model = lib.llama_model_load_from_file(file.encode(), lib.llama_model_default_params())
    if model == ffi.NULL:
        sys.exit(f"llama.cpp cannot load {file}")
    vocabulary = lib.llama_model_get_vocab(model)
    ids = [tokens(ffi, lib, vocabulary, text) for text in wanted["texts"]]
    facts = {"ids": ids, "bos": lib.llama_vocab_bos(vocabulary), "eos": lib.llama_vocab_eos(vocabulary), "eot": lib.llama_vocab_eot(vocabulary)}
    np.savez(out, *[logits(ffi, lib, model, row, lib.llama_vocab_n_tokens(vocabulary)) for row in wanted["rows"]])
    with open(out + ".json", "w", encoding="utf-8") as opened:
        json.dump(facts, opened)


def tokens(ffi, lib, vocabulary, text: str) -> list[int]:
    raw = text.encode()
    room = ffi.new("llama_token[]", len(raw) + 16)
    count = lib.llama_tokenize(vocabulary, raw, len(raw), room, len(raw) + 16, True, True)
    return [room[i] for i in range(count)]


def logits(ffi, lib, model, row: list[int], width: int) -> np.ndarray:
    settings = lib.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = max(64, len(row))
    settings.n_threads = settings.n_threads_batch = 1
    settings.type_k = settings.type_v = 0  # float32, not the default float16
    settings.flash_attn_type = 0
    context = lib.llama_init_from_model(model, settings)
    batch = lib.llama_batch_init(len(row), 0, 1)
    batch.n_tokens = len(row)
    for i, token in enumerate(row):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
    if lib.llama_decode(context, batch) != 0:
        sys.exit("llama.cpp cannot decode")
    rows = [np.frombuffer(ffi.buffer(lib.llama_get_logits_ith(context, i), 4 * width), dtype=np.float32).copy() for i in range(len(row))]
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    return np.stack(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
