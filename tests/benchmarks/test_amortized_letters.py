"""The study of the letters is trained, resumed and drawn at toy size."""

import json
import sys

import torch

from benchmarks.studies import amortized_letters


def test_letters_are_trained_resumed_and_drawn(tmp_path, monkeypatch, capsys):
    assert amortized_letters.split_points(4, 64) == [32, 16, 8, 8] and amortized_letters.split_points(3, 16) == [
        8,
        4,
        4,
    ]
    out = tmp_path / "letters.jsonl"
    command = ["letters", "table", "--out", str(out), "--epochs", "1", "--rows", "240", "--cells", "2x16"]
    monkeypatch.setattr(sys, "argv", [*command, "--figures", str(tmp_path)])
    amortized_letters.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["seed"] for row in rows] == [0, 1, 2, 3, 4]
    assert all((row["n_train"], row["n_test"], row["steps"]) == (120, 80, 2) for row in rows)
    assert (tmp_path / "letters-table.png").exists()
    amortized_letters.main()
    assert len(out.read_text().splitlines()) == 5
    shown = capsys.readouterr().out
    assert "2 layers, 16 points, affine" in shown and "5 runs), spread" in shown and "published 8.02 (0.7)" in shown
    with out.open("a") as file:  # a run of another length is none of these
        file.write(json.dumps(rows[0] | {"epochs": 2, "error": 99.0}) + "\n")
    amortized_letters.main()
    assert capsys.readouterr().out.splitlines()[-1] == shown.splitlines()[-1]


def test_the_points_of_rows_are_kept_and_drawn(tmp_path, monkeypatch, capsys):
    out = tmp_path / "letters.jsonl"
    command = ["letters", "points", "--out", str(out), "--epochs", "1", "--rows", "240", "--figures", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    amortized_letters.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["points"] for row in rows] == ["affine", *(f"network-{depth}" for depth in range(1, 6))]
    assert all(torch.tensor(row["points_of_rows"]).shape == (80, 8, 2) for row in rows)  # all 80 test rows
    found = amortized_letters.spread(torch.tensor(rows[0]["points_of_rows"]))
    assert abs(float(found) - rows[0]["spread"]) < 2e-3  # three digits are kept
    assert (tmp_path / "letters-points.png").exists() and "points_of_rows" not in capsys.readouterr().out


def test_spread_is_nothing_on_a_line_and_all_on_a_disc():
    line = torch.randn(500, 4, 1) * torch.tensor([1.0, 2.0])
    assert amortized_letters.spread(line) < 1e-6 and amortized_letters.spread(torch.randn(2000, 4, 2)) > 0.9
