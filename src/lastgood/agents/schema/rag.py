"""Sources of documents to search.

Nothing follows from them yet. A misspelt key is a mistake anyway.
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
    "how documents are split into chunks",
    {
        "size": Key(_COUNT, "the chunk size, in characters"),
        "overlap": Key(_COUNT, "the overlap of two chunks, in characters"),
        "respect_word_boundaries": Key(FLAG, "whether to keep words whole"),
        "code_aware": Key(FLAG, "whether to split code at functions"),
    },
)
STRATEGY = Section(
    "strategy",
    "a retrieval strategy",
    {
        "type": Key(TEXT, "its kind", required=True),
        "docs": Key(TEXTS, "documents of its own"),
        "database": Key(TEXT, "the file of its index"),
        "chunking": Key(CHUNKING, "how documents are split into chunks"),
        "limit": Key(_COUNT, "the maximum number of results"),
    },
    open=True,  # each kind of strategy has parameters of its own
)
FUSION = Section(
    "fusion",
    "how results are merged",
    {
        "strategy": Key(Text(("rrf", "reciprocal_rank_fusion", "weighted", "max")), "the method"),
        "k": Key(_COUNT, "the constant of rank fusion"),
        "weights": Key(MapOf(Number(least=0, most=1)), "the weight of each strategy"),
    },
)
RERANKING = Section(
    "reranking",
    "how results are reranked",
    {
        "model": Key(TEXT, "the reranking model", required=True),
        "top_k": Key(_COUNT, "how many results to rerank"),
        "threshold": Key(Number(least=0, most=1), "the minimum score"),
        "criteria": Key(TEXT, "what makes a result relevant"),
    },
)
RESULTS = Section(
    "results",
    "what to do with results",
    {
        "limit": Key(_COUNT, "the maximum number of results for the agent"),
        "fusion": Key(FUSION, "how to merge the results of several strategies"),
        "reranking": Key(RERANKING, "how to rerank them"),
        "deduplicate": Key(FLAG, "whether to remove duplicates"),
        "include_score": Key(FLAG, "whether to include scores"),
        "return_full_content": Key(FLAG, "whether to return whole documents"),
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
                "instruction": Key(TEXT, "how to use it"),
            },
        ),
        "the tool that searches the source",
    ),
    "docs": Key(TEXTS, "files and folders to search"),
    "respect_vcs": Key(FLAG, "whether to skip files that git ignores"),
    "indexing_timeout": Key(Span(), "the timeout of indexing"),
    "strategies": Key(ListOf(STRATEGY, least=1), "how to search it", required=True),
    "results": Key(RESULTS, "what to do with results"),
}
RAG_CONFIG = Section("rag_config", "a source of documents", _RAG_KEYS)
RAG = Section(
    "rag",
    "a source of documents (rag.NAME)",
    {
        **_RAG_KEYS,
        "description": Key(TEXT, "what it is for", until=2, instead="tool: {description: …}"),
        "instruction": Key(TEXT, "how to use it"),
        "tools": Key(TEXTS, "the tools to offer"),
        "name": Key(TEXT, "its name"),
        "defer": Key(Either((FLAG, TEXTS)), "tools that the model must search for before it can call them"),
    },
)
