"""Figures on the pages are those of the lines that they come from, which can be made again."""

from benchmarks import nested_jit, tables


def test_tables_are_those_of_their_lines():
    """`python -m benchmarks.tables` makes them anew."""
    texts = {page.name: page.read_text(encoding="utf-8") for page in tables.PAGES}
    assert sum("<!-- table: " in text for text in texts.values()) >= 2
    assert not [name for name, text in texts.items() if tables.filled(text) != text]


def test_effects_of_nesting_are_measured():
    lines = list(nested_jit.measure(1, pairs=((4, 3),)))
    assert [line["measurement"] for line in lines] == ["size", "nested call", *["vmap"] * 4]
    assert lines[0]["same_optimised_hlo"]
    runs = {line["kind"]: line["python_runs"] for line in lines if line["measurement"] == "vmap"}
    assert runs["vmap(f)"] > runs["jit(vmap(f))"] == runs["vmap(jit(f))"] == 1


def test_ratios_of_a_table_are_within_a_round():
    def line(contender, round_number, seconds):
        return {
            **{"program": "seed2022", "settings": {}, "contender": contender},
            **{"round": round_number, "cold_cpu_s": seconds, "run_cpu_s": [seconds]},
            "n_instructions": 1000,
        }

    lines = [line("jit", 0, 2.0), line("jit", 1, 40.0)]
    lines += [line("nested_jit", 0, 1.0), line("nested_jit", 1, 10.0), line("nested_jit", 2, 1.0)]
    assert "| nested | 1 s | 3.00x (2.00-4.00) |" in tables.processor_seconds(lines)
