"""The generator of rectangles."""

import numpy as np

from benchmarks.common import rectangles as generator


def test_images_are_patches_with_a_rectangle_over_them(monkeypatch):
    monkeypatch.setattr(generator, "_photographs", lambda: [np.zeros((60, 120)), np.ones((60, 120))])
    data = generator.rectangles(40, 20, seed=1)
    assert data.x.shape == (60, 784) and data.splits[:, 0].sum() == 20
    for image, is_tall in zip(data.x.reshape(-1, 28, 28), data.y, strict=True):
        for value in (0.0, 1.0):  # the one that forms a whole rectangle, unless it covers the image in one direction
            rows, columns = np.nonzero(image == value)
            height, width = rows.max() - rows.min() + 1, columns.max() - columns.min() + 1
            if len(rows) == height * width and len(rows) < 784 and (height < 28 or width < 28):
                sides = (height, width)
                break
        assert abs(sides[0] - sides[1]) >= 3 and min(sides) >= 3
        if 28 not in sides:
            assert (sides[0] > sides[1]) == bool(is_tall)
    again = generator.rectangles(40, 20, seed=1)
    assert np.array_equal(again.x, data.x) and not np.array_equal(generator.rectangles(40, 20, seed=2).x, data.x)


def test_both_classes_are_as_frequent_and_photographs_differ_between_training_and_test():
    data = generator.rectangles(400, 400)
    assert 0.4 < data.y[:400].mean() < 0.6 and data.x.min() >= 0 and data.x.max() <= 1
