#include "worker_runtime/scalars/scalars.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "base/os/machine_identity.hpp"
#include "base/os/own_variable.hpp"
#include "base/os/unix_time.hpp"
#include "worker_runtime/scalars/tensorboard_records.hpp"

namespace ddprun::worker {

Scalars::Scalars(const WorkerEnvironment& place)
    : folder_(own_variable("DDPRUN_TENSORBOARD_DIR")),
      generation_(place.generation.value()),
      writes_(place.rank.value() == 0) {
    if (folder_.empty()) {
        folder_ = "runs/" + (place.job.value().empty() ? "local" : place.job.value());
    }
}

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
    std::string records;
    if (!file_.is_open()) {
        if (Result<void> created = create(now); !created) {
            return created;
        }
        records = version_record(now) + start_record(step, now) +
                  scalar_record("ddprun/generation", static_cast<double>(generation_), step, now);
    }
    records += scalar_record(tag, value, step, now);
    ssize_t written = 0;
    do {
        written = ::write(file_.get(), records.data(), records.size());
    } while (written < 0 && errno == EINTR);
    if (written < 0) {
        return system_error(errno, path_ + " cannot be written");
    }
    if (static_cast<std::size_t>(written) < records.size()) {
        return Error{ErrorCode::System, path_ + " cannot be written: the disk is full"};
    }
    return {};
}

/// events.out.tfevents.<Unix time>.<host>.<pid>.<generation>: TensorBoard reads the files in this
/// order.
Result<void> Scalars::create(Milliseconds now) {
    std::error_code problem;
    std::filesystem::create_directories(folder_, problem);
    if (problem) {
        return system_error(problem.value(), folder_ + " cannot be made");
    }
    path_ = fmt::format("{}/events.out.tfevents.{}.{}.{}.{}", folder_, now.count() / 1000,
                        host_name(), ::getpid(), generation_);
    constexpr int kNewFile = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC;
    file_.reset(::open(path_.c_str(), kNewFile, 0666));
    if (!file_.is_open()) {
        return system_error(errno, path_ + " cannot be created");
    }
    return {};
}

}  // namespace ddprun::worker
