"""The study of rectangles in miniature: it goes on in its file, stands beside the published numbers, and draws."""

import json
import sys

import pytest
import torch

from benchmarks.studies import rectangles

pytestmark = pytest.mark.usefixtures("local")


def test_the_study_goes_on_in_its_file_and_draws(tmp_path, monkeypatch, capsys):
    few = {name: rectangles.Row(**{**vars(row), "inducing": 5}) for name, row in rectangles.ROWS.items()}
    monkeypatch.setattr(rectangles, "ROWS", few)
    out, figure = tmp_path / "runs.jsonl", tmp_path / "figure.png"
    options = ["--rows", "40,30", "--steps", "2", "--batch-size", "20", "--out", str(out), "--figure", str(figure)]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["study", *options, "--methods", "svgp-100,dsvi-3,aep-2"])
        rectangles.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["method"] for row in rows] == ["svgp-100", "dsvi-3", "aep-2"]
    assert [row["settings"]["width"] for row in rows[1:]] == [30, 2]
    assert all(
        (row["training"], row["test"], row["steps"], sum(row["curve"]["count"])) == (40, 30, 2, 30) for row in rows
    )
    assert figure.exists() and "-0.657" in capsys.readouterr().out
    for other in (["--steps", "4"], ["--learning-rate", "0.02"]):  # each is another run
        monkeypatch.setattr(sys, "argv", ["study", *options, *other, "--methods", "svgp-100"])
        rectangles.main()
    assert len(out.read_text().splitlines()) == 5


def test_a_classifier_begins_with_scaled_inputs_of_unit_variance():
    x = torch.randn(200, 50)
    narrow = rectangles.ROWS["aep-2"]
    model = rectangles.classifier(x, narrow, rectangles.SETTINGS)
    assert model.hidden[0].kernel.lengthscale.shape == (2, 50)
    scaled = x / model.hidden[0].kernel.lengthscale[0].detach()
    assert float(scaled.var(0).sum()) == pytest.approx(1)
    assert "weight_unconstrained" in dict(model.hidden[0].mean.named_parameters())
    wide = rectangles.classifier(x, rectangles.ROWS["dsvi-2"], rectangles.SETTINGS)
    assert wide.hidden[0].num_outputs == 30 and not dict(wide.hidden[0].mean.named_parameters())
