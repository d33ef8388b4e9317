"""So that a failed promise of the suite shows its values, as one of these tests would."""

import pytest

pytest.register_assert_rewrite("cellfork.testing.kernel_suite")
