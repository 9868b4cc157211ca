#include "worker_runtime/checkpoint/save_numbers.hpp"

#include <algorithm>

namespace ddprun::worker {

std::uint64_t SaveNumbers::next(std::int64_t step) {
    if (step > newest_) {
        newest_ = step;
        return 0;
    }
    return ++last_;
}

void SaveNumbers::resumed(const SavedStep& from) {
    newest_ = std::max(newest_, from.step);
    last_ = std::max(last_, from.save);
}

}  // namespace ddprun::worker
