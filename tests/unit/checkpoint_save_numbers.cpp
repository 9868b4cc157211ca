// The later of two saves of a step has the larger number, whatever happens between them.

#include <cstdint>

#include "tests/support/catch.hpp"
#include "worker_runtime/checkpoint/save_numbers.hpp"

using ddprun::worker::SavedStep;
using ddprun::worker::SaveNumbers;

TEST_CASE("the saves of a training whose steps ascend have no number") {
    SaveNumbers numbers;
    for (const std::int64_t step : {0, 1, 5, 1000}) {
        CHECK(numbers.next(step) == 0);
    }
}

TEST_CASE("each later save of a step has a larger number than those before") {
    SaveNumbers numbers;
    CHECK(numbers.next(5) == 0);
    CHECK(numbers.next(5) == 1);
    CHECK(numbers.next(6) == 0);
    CHECK(numbers.next(6) == 2);
    CHECK(numbers.next(5) == 3);
}

TEST_CASE("a training that goes back to an earlier step numbers the steps that come again") {
    SaveNumbers numbers;
    CHECK(numbers.next(5) == 0);
    CHECK(numbers.next(6) == 0);
    numbers.resumed({.step = 5});
    CHECK(numbers.next(6) == 1);
    CHECK(numbers.next(7) == 0);
}

TEST_CASE("a training that resumes goes on from the number of the save") {
    SaveNumbers numbers;
    numbers.resumed({.step = 5, .save = 4});
    CHECK(numbers.next(5) == 5);
    CHECK(numbers.next(6) == 0);
}

TEST_CASE("a step counts before the number of its save") {
    CHECK(SavedStep{.step = 5, .save = 9} < SavedStep{.step = 6});
    CHECK(SavedStep{.step = 5} < SavedStep{.step = 5, .save = 1});
}
