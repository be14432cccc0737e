"""`octavo export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.config.sections import ModelConfig
from octavo.entrypoints.cli.fetch import fetch_model, progress_bar
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.models.files import ModelFiles

_FORMATS = ("hf", "gguf")


def export(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Alias, folder, GGUF file or Hugging Face id.")
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The folder (hf) or file (gguf) to write.")
    ],
    format: Annotated[
        str,
        typer.Option(
            metavar="hf|gguf", help="A Hugging Face folder of safetensors, or one GGUF file."
        ),
    ] = "hf",
    dtype: Annotated[
        str,
        typer.Option(
            metavar="auto|float32|bfloat16|q8_0",
            help="Type of the matrices. auto: bfloat16 if they are that already, else float32.",
        ),
    ] = "auto",
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit on the Hugging Face hub.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is at OUT.")] = False,
) -> None:
    """Write a model in another format, so that other engines run the very same weights.

    float32 is exact for every source. Nothing appears at OUT unless all of it was written.
    """
    from octavo.models.export_target import check_target
    from octavo.models.files import resolve_model

    if format not in _FORMATS:
        raise ConfigError(f"format={format!r} must be one of {', '.join(_FORMATS)}")
    out = out.expanduser().absolute()
    check_target(out, force=force, is_folder=format == "hf")
    path = fetch_model(ModelConfig(model=model, revision=revision))
    files = resolve_model(str(path))
    try:
        if out.exists() and out.samefile(files.path):
            raise ConfigError(f"{out} is the model itself; export it to another place")
        _write(files, out, format, dtype, force)
    finally:
        files.close()
    typer.echo(out)


def _write(files: ModelFiles, out: Path, format: str, dtype: str, force: bool) -> None:
    from octavo.contracts.tensor import DType
    from octavo.engine import tokenizer_export
    from octavo.models.export_gguf import export_gguf
    from octavo.models.export_hf import export_hf

    if dtype == "auto":
        dtype = "bfloat16" if files.checkpoint_dtype is DType.BF16 else "float32"
    with progress_bar(f"writing {out.name}") as progress:
        if format == "hf":
            export_hf(
                files,
                out,
                dtype=dtype,
                tokenizer=tokenizer_export.folder_files(files),
                force=force,
                progress=progress,
            )
        else:
            export_gguf(
                files,
                out,
                dtype=dtype,
                tokenizer=tokenizer_export.gguf_metadata(files),
                force=force,
                progress=progress,
            )
