"""Steps of deep sigma point processes are timed beside GPyTorch."""

from benchmarks.studies import speed_of_sigma_points


def test_speed_of_sigma_points_is_measured_beside_gpytorch(monkeypatch):
    for name, value in {"INDUCING": 8, "BATCH": 10, "ROWS": 50}.items():
        monkeypatch.setattr(speed_of_sigma_points, name, value)
    row = speed_of_sigma_points.measure("qr1", 3, 2, repeats=2, threads=1)
    assert row["components"] == 9 and row["ratio_to_gpytorch"] > 0
