#include "worker_runtime/scalars/scalars.hpp"

#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "base/os/machine_identity.hpp"
#include "base/os/unix_time.hpp"

namespace ddprun::worker {

std::string scalars_folder(const WorkerEnvironment& place) {
    const char* const asked = std::getenv("DDPRUN_TENSORBOARD_DIR");
    if (asked != nullptr && *asked != '\0') {
        return asked;
    }
    return "runs/" + (place.job.value().empty() ? "local" : place.job.value());
}

Scalars::Scalars(const WorkerEnvironment& place, std::string folder)
    : folder_(std::move(folder)),
      generation_(place.generation.value()),
      writes_(place.rank.value() == 0) {}

Result<void> Scalars::add(const std::string& tag, double value, std::int64_t step) {
    if (!writes_) {
        return {};
    }
    Result<void> written = write(tag, value, step);
    writes_ = written.has_value();
    return written;
}

Result<void> Scalars::write(const std::string& tag, double value, std::int64_t step) {
    const Milliseconds now = unix_now();
    if (!file_.has_value()) {
        const TensorBoardFileName name{.started = now.count() / 1000,
                                       .hostname = host_name(),
                                       .pid = ::getpid(),
                                       .generation = generation_};
        Result<TensorBoardFile> file = TensorBoardFile::create(folder_, name, step, now);
        if (!file) {
            return file.error();
        }
        file_ = std::move(*file);
        const Result<void> marked =
            file_->scalar("ddprun/generation", static_cast<double>(generation_), step, now);
        if (!marked) {
            return marked;
        }
    }
    return file_->scalar(tag, value, step, now);
}

}  // namespace ddprun::worker
