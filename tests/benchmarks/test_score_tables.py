"""Tables of scores agree with a table made by hand."""

import pandas as pd
import pytest

from benchmarks.common.score_tables import paired, ranks


def test_differences_and_ranks_against_a_table_by_hand():
    rows = pd.DataFrame(
        [
            {"dataset": d, "split": k, "method": m, "nll": value, "rmse": value, "crps": -value}
            for d, k, m, value in [
                ("a", 0, "dspp", 1.0), ("a", 0, "ppgpr", 2.0), ("a", 1, "dspp", 4.0), ("a", 1, "ppgpr", 3.0),
                ("b", 0, "dspp", 0.0), ("b", 0, "ppgpr", 3.0), ("b", 1, "dspp", 9.0),
            ]
        ]
    )  # fmt: skip
    table = paired(rows, "dspp", "ppgpr")
    assert table.loc["a", "mean"] == 0.0 and table.loc["a", "largest"] == 1.0 and table.loc["a", "sem"] == 1.0
    assert table.loc["pooled", "pairs"] == 3 and table.loc["pooled", "mean"] == -1.0
    table = ranks(rows)
    assert table.loc["dspp", "rank of NLL"] == pytest.approx(4 / 3, abs=0.01)
    assert table.loc["dspp", "rank of CRPS"] == pytest.approx(5 / 3, abs=0.01)
