"""How text is split into words before byte-pair merging, by the name in the model file.

A model is trained with one particular pre-tokenizer, so each name identifies one list of regular
expressions. They run one after the other: every match becomes a word, and the text between matches
goes to the next expression. For a name that is not in the table, the engine's own tokenizer is
used. A rebuilt tokenizer is always compared with the engine's when the model is loaded.
"""

from __future__ import annotations

from msgspec import Struct


class Pretokenizer(Struct, frozen=True):
    """One way to split text, and two defaults of its models."""

    patterns: tuple[str, ...]
    whole_words: bool = False  # a word that is a token is never merged from parts
    add_bos: bool = False  # if the model file does not set it


_ENDINGS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CLASSIC = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_KANJI_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CODE_WORD = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
)
_SENTENCE_MARKS = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_ALPHABETS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-"
    "\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90"
    "-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-"
    "\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d"
    "\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)


def _write_modern_pattern(digits: str, endings: str = _ENDINGS + "|") -> str:
    return f"{endings}{_WORD}|{digits}|{_SYMBOLS}|{_SPACE}"


def _write_case_pattern(upper: str, lower: str, digits: str, endings: str = _ENDINGS + "?") -> str:
    """Return a pattern for words that end where the case of the letters changes."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{lead}{upper}*{lower}+{endings}|{lead}{upper}+{lower}*{endings}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
    )


_NOT_SMALL = r"(?:(?=\p{L})[^a-z])"
_NOT_CAPITAL = r"(?:(?=\p{L})[^A-Z])"
_MARKED_NOT_SMALL = r"(?:(?=[\p{L}\p{M}])[^a-z])"
_MARKED_NOT_CAPITAL = r"(?:(?=[\p{L}\p{M}])[^A-Z])"

_ONE_DIGIT = (_write_modern_pattern(r"\p{N}"),)
_THREE_DIGITS = (_write_modern_pattern(r"\p{N}{1,3}"),)
_DIGITS_THEN_CLASSIC = (r"\p{N}", _CLASSIC)
_DIGITS_CJK_CODE = (
    r"\p{N}{1,3}",
    _KANJI_KANA,
    rf"{_CODE_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACE}",
)
_MIXED_CASE = (_write_case_pattern(_NOT_SMALL, _NOT_CAPITAL, r"\p{N}{1,3}"),)
_LONG_SPACES = "|".join(rf"\s{{{run}}}(?!\S)" for run in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))

_GROUPS: tuple[tuple[str, Pretokenizer], ...] = (
    (
        "default",
        Pretokenizer((r"[\p{P}\$\+<=>\^~\|]+", _CLASSIC, r"\p{N}+", "[0-9][0-9][0-9]")),
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        Pretokenizer(_THREE_DIGITS, whole_words=True, add_bos=True),
    ),
    ("glm4 glm5", Pretokenizer(_THREE_DIGITS, whole_words=True)),
    ("dbrx smaug-bpe chatglm-bpe", Pretokenizer(_THREE_DIGITS)),
    (
        "gpt-2 mpt olmo phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code "
        "gigachat a.x-4.0 mellum modern-bert roberta-bpe jais exaone4 trillion granite-docling",
        Pretokenizer((_CLASSIC,)),
    ),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        Pretokenizer(_DIGITS_THEN_CLASSIC),
    ),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan grok-2 solar-open",
        Pretokenizer(_ONE_DIGIT),
    ),
    (
        "qwen35",
        Pretokenizer(
            (
                rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}",
            )
        ),
    ),
    (
        "deepseek-llm",
        Pretokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_ALPHABETS}]+",
                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                r"\s+$",
                _CJK,
                r"\p{N}+",
            )
        ),
    ),
    ("deepseek-coder", Pretokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", Pretokenizer(_DIGITS_CJK_CODE)),
    (
        "spark2_5",
        Pretokenizer(
            (
                r"\p{N}{1,3}",
                _KANJI_KANA,
                rf"{_CODE_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
                r"\p{N}",
            )
        ),
    ),
    ("falcon", Pretokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _CLASSIC, "[0-9][0-9][0-9]"))),
    ("bloom poro-chat gpt3-finnish", Pretokenizer((_SENTENCE_MARKS,))),
    ("viking", Pretokenizer((_SENTENCE_MARKS, r"\p{N}"))),
    (
        "tekken",
        Pretokenizer(
            (_write_case_pattern(_NOT_SMALL, _NOT_CAPITAL, r"\p{N}", ""),),
            whole_words=True,
            add_bos=True,
        ),
    ),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", Pretokenizer(_MIXED_CASE)),
    (
        "granite-embed-multi-97m",
        Pretokenizer(
            (_write_case_pattern(_MARKED_NOT_SMALL, _MARKED_NOT_CAPITAL, r"\p{N}{1,3}"),),
            whole_words=True,
        ),
    ),
    (
        "exaone-moe",
        Pretokenizer(
            (
                rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
                r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        Pretokenizer(
            (
                rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_SYMBOLS}"
                r"|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "seed-coder",
        Pretokenizer((rf"{_ENDINGS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACE}",)),
    ),
    ("ufakzeka", Pretokenizer((_write_modern_pattern(r"\p{N}", ""),))),
    ("laguna", Pretokenizer((r"[^\n]+|[\n]+", *_ONE_DIGIT))),
    ("minicpm5", Pretokenizer((r"\p{N}{1,3}", _write_modern_pattern(r"\p{N}+")), whole_words=True)),
    (
        "jais-2",
        Pretokenizer(
            (rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|{_LONG_SPACES}|\s",)
        ),
    ),
    (
        "k2-horizon",
        Pretokenizer(
            (
                _ENDINGS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}|\p{M}|" + "\u200c|\u200d" + r")+"
                rf"|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACE}",
            )
        ),
    ),
)

PRETOKENIZERS: dict[str, Pretokenizer] = {
    name: pretokenizer for names, pretokenizer in _GROUPS for name in names.split()
}
