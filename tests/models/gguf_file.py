"""Writing GGUF: the parts every model here has in common."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, quants

from vocabulary import Piece

CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")


class Model:
    """A GGUF being written. Matrices are stored in `kind`, vectors always as F32 (as llama.cpp's converters do)."""

    def __init__(self, architecture: str, name: str, kind: GGMLQuantizationType) -> None:
        self.writer = GGUFWriter(None, architecture)
        self._kind = kind
        self.writer.add_name(name)
        self.writer.add_description("Random weights made for Muster's tests; it says nothing on purpose")
        self.writer.add_license("apache-2.0")
        file_types = {
            GGMLQuantizationType.F32: LlamaFileType.ALL_F32,
            GGMLQuantizationType.F16: LlamaFileType.MOSTLY_F16,
            GGMLQuantizationType.Q8_0: LlamaFileType.MOSTLY_Q8_0,
        }
        self.writer.add_file_type(file_types[kind])

    def tensor(self, name: str, data: np.ndarray, exact: bool = False) -> None:
        """Adds a tensor; `exact` keeps a matrix in F32."""
        data = np.ascontiguousarray(data, dtype=np.float32)
        if data.ndim == 1 or exact or self._kind == GGMLQuantizationType.F32:
            self.writer.add_tensor(name, data)
        elif self._kind == GGMLQuantizationType.F16:
            self.writer.add_tensor(name, data.astype(np.float16))
        else:
            self.writer.add_tensor(name, quants.quantize(data, self._kind), raw_dtype=self._kind)

    def chat_tokenizer(self, pieces: list[Piece]) -> None:
        """Describes the chat vocabulary and attaches the chat template."""
        writer, ids = self.writer, {piece.text: index for index, piece in enumerate(pieces)}
        writer.add_tokenizer_model("llama")
        writer.add_token_list([piece.text for piece in pieces])
        writer.add_token_scores([piece.score for piece in pieces])
        writer.add_token_types([piece.type for piece in pieces])
        writer.add_bos_token_id(ids["<s>"])
        writer.add_eos_token_id(ids["<|im_end|>"])
        writer.add_unk_token_id(ids["<unk>"])
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(False)
        writer.add_add_space_prefix(False)
        writer.add_chat_template(CHAT_TEMPLATE)

    def save(self, path: Path) -> None:
        """Writes the file."""
        self.writer.write_header_to_file(path)
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
