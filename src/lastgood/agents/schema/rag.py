"""Sources of documents to search.

Nothing follows from them yet. A misspelt key is a mistake all the same.
"""

from __future__ import annotations

from lastgood.agents.schema.kinds import (
    FLAG,
    TEXT,
    TEXTS,
    Either,
    Key,
    ListOf,
    MapOf,
    Number,
    Section,
    Span,
    Text,
    Whole,
)

_COUNT = Whole(least=0)

CHUNKING = Section(
    "chunking",
    "how documents are cut",
    {
        "size": Key(_COUNT, "characters of a piece"),
        "overlap": Key(_COUNT, "characters that two pieces share"),
        "respect_word_boundaries": Key(FLAG, "whether words stay whole"),
        "code_aware": Key(FLAG, "whether code is cut at its functions"),
    },
)
STRATEGY = Section(
    "strategy",
    "a strategy of retrieval",
    {
        "type": Key(TEXT, "its kind", required=True),
        "docs": Key(TEXTS, "documents of its own"),
        "database": Key(TEXT, "the file of its index"),
        "chunking": Key(CHUNKING, "how documents are cut"),
        "limit": Key(_COUNT, "how many results it gives"),
    },
    open=True,  # each kind of strategy has parameters of its own
)
FUSION = Section(
    "fusion",
    "how results are joined",
    {
        "strategy": Key(Text(("rrf", "reciprocal_rank_fusion", "weighted", "max")), "the way"),
        "k": Key(_COUNT, "the constant of rank fusion"),
        "weights": Key(MapOf(Number(least=0, most=1)), "the weight of each strategy"),
    },
)
RERANKING = Section(
    "reranking",
    "how results are ranked again",
    {
        "model": Key(TEXT, "the model that ranks", required=True),
        "top_k": Key(_COUNT, "how many are ranked"),
        "threshold": Key(Number(least=0, most=1), "the lowest score that is kept"),
        "criteria": Key(TEXT, "what makes a result relevant"),
    },
)
RESULTS = Section(
    "results",
    "what becomes of results",
    {
        "limit": Key(_COUNT, "how many are given to the agent"),
        "fusion": Key(FUSION, "how results of several strategies are joined"),
        "reranking": Key(RERANKING, "how they are ranked again"),
        "deduplicate": Key(FLAG, "whether a document is given once"),
        "include_score": Key(FLAG, "whether scores are given"),
        "return_full_content": Key(FLAG, "whether whole documents are given"),
    },
)
_RAG_KEYS = {
    "tool": Key(
        Section(
            "rag tool",
            "the tool of a source",
            {
                "name": Key(TEXT, "its name"),
                "description": Key(TEXT, "what it is for"),
                "instruction": Key(TEXT, "how it is used"),
            },
        ),
        "how the agent sees the source",
    ),
    "docs": Key(TEXTS, "files and folders to search"),
    "respect_vcs": Key(FLAG, "whether ignored files are left out"),
    "indexing_timeout": Key(Span(), "how long indexing may take"),
    "strategies": Key(ListOf(STRATEGY, least=1), "how it is searched", required=True),
    "results": Key(RESULTS, "what becomes of results"),
}
RAG_CONFIG = Section("rag_config", "a source of documents", _RAG_KEYS)
RAG = Section(
    "rag",
    "a source of documents (rag.NAME)",
    {
        **_RAG_KEYS,
        "description": Key(TEXT, "what it is for", until=2, instead="tool: {description: …}"),
        "instruction": Key(TEXT, "how it is used"),
        "tools": Key(TEXTS, "the tools to offer"),
        "name": Key(TEXT, "its name"),
        "defer": Key(Either((FLAG, TEXTS)), "tools that are found only when they are looked for"),
    },
)
