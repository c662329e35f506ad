"""The table of contents of the site, and the pages that it reaches only by links.

Every page of `docs/` and every page at the root of the repository is listed in `NAV`. tests/docs/test_site.py fails for a page that
is not. A path is relative to the repository.
"""

from __future__ import annotations

#: Sections in the order of the sidebar: title, and (title, path) of each page. An empty title is that of the page's first heading.
NAV: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Start",
        (
            ("fitscope", "README.md"),
            ("", "docs/getting-started.md"),
            ("", "docs/hunts.md"),
            ("", "docs/gallery.md"),
            ("Questions", "docs/faq.md"),
            ("Comparison", "docs/comparison.md"),
        ),
    ),
    (
        "Record",
        (
            ("", "docs/watches.md"),
            ("", "docs/schedules.md"),
            ("", "docs/loops.md"),
            ("", "docs/distributed.md"),
            ("", "docs/scale.md"),
            ("", "docs/black-box.md"),
            ("TF1 sessions", "docs/sessions.md"),
            ("", "docs/legacy.md"),
        ),
    ),
    (
        "Read",
        (
            ("", "docs/reading.md"),
            ("Rules", "docs/rules.md"),
            ("", "docs/page.md"),
            ("", "docs/notebooks.md"),
            ("", "docs/export.md"),
            ("", "docs/cli.md"),
            ("", "docs/api.md"),
        ),
    ),
    (
        "Recipes",
        (
            ("All recipes", "docs/recipes/README.md"),
            ("", "docs/recipes/01-layer-output.md"),
            ("", "docs/recipes/02-several-layers.md"),
            ("", "docs/recipes/03-average.md"),
            ("", "docs/recipes/04-custom-loop.md"),
            ("", "docs/recipes/05-epoch-end.md"),
            ("", "docs/recipes/06-tap-layers.md"),
            ("", "docs/recipes/07-batch-change-layer.md"),
            ("", "docs/recipes/08-changes.md"),
            ("", "docs/recipes/09-tensorboard.md"),
            ("", "docs/recipes/10-batch-loss.md"),
            ("", "docs/recipes/11-batch-metrics.md"),
            ("", "docs/recipes/12-samples.md"),
            ("", "docs/recipes/13-bounded-memory.md"),
            ("", "docs/recipes/14-npy-per-epoch.md"),
            ("", "docs/recipes/15-validation.md"),
            ("", "docs/recipes/16-checkpoints.md"),
            ("", "docs/recipes/tf1-epoch-outputs.md"),
            ("", "docs/recipes/tf1-validation.md"),
            ("", "docs/recipes/tf1-checkpoints.md"),
            ("", "docs/recipes/tf1-keras-callback.md"),
        ),
    ),
    (
        "Trust",
        (
            ("", "docs/how-it-works.md"),
            ("", "docs/promises.md"),
            ("Identity", "docs/identity.md"),
            ("", "docs/costs.md"),
            ("", "docs/faults.md"),
            ("", "docs/reliability.md"),
            ("", "docs/versions.md"),
            ("", "SECURITY.md"),
            ("", "docs/backends.md"),
            ("Benchmarks", "bench/results.md"),
        ),
    ),
    (
        "Develop",
        (
            ("", "ARCHITECTURE.md"),
            ("The layout on disk", "docs/layout.md"),
            ("", "docs/glossary.md"),
            ("", "CONTRIBUTING.md"),
            ("", "CHANGELOG.md"),
        ),
    ),
)

#: Pages that the site has because another page links to them.
LINKED: tuple[str, ...] = (
    "bench/default.md",
    "bench/growth.md",
    "bench/memory.md",
    "bench/ui-results.md",
    "tests/diagnosis/README.md",
)


def listed() -> tuple[str, ...]:
    """The paths of the pages in the sidebar, in order."""
    return tuple(path for _, pages in NAV for _, path in pages)
