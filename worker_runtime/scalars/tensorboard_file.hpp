#pragma once

#include <cstdint>
#include <string>

#include "base/instant.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::worker {

/// What tells one event file from all others, and orders them.
struct TensorBoardFileName {
    std::int64_t started = 0;  ///< Unix time, seconds: TensorBoard reads the files in this order
    std::string hostname;
    int pid = 0;
    std::uint64_t generation = 1;
};

/// A file of scalars that TensorBoard reads: TFRecords of tensorflow.Event messages (tensorflow's
/// core/util/event.proto, core/framework/summary.proto and core/lib/io/record_writer.cc), version
/// `brain.Event:2`. One per process that writes; those in one folder are one run. Each scalar is in
/// the file when scalar() returns, by one write(): a process that is killed loses none and leaves
/// no half of one. One thread.
class TensorBoardFile {
public:
    /// Creates `folder` and those above it if they are missing, and the file in it, which must not
    /// exist: events.out.tfevents.<started>.<hostname>.<pid>.<generation>. It begins with the mark
    /// of a start at `step`: TensorBoard then drops what earlier files have at `step` and later.
    [[nodiscard]] static Result<TensorBoardFile> create(const std::string& folder,
                                                        const TensorBoardFileName& name,
                                                        std::int64_t step, Milliseconds now);

    /// Adds one value of the curve `tag` at `step`; `now` is Unix time. TensorBoard keeps 32 bits
    /// of a value. After a failure the file is as it was, or ends with a record that no reader
    /// takes.
    [[nodiscard]] Result<void> scalar(const std::string& tag, double value, std::int64_t step,
                                      Milliseconds now);

    [[nodiscard]] const std::string& path() const { return path_; }

private:
    TensorBoardFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

    Result<void> append(const std::string& event);

    UniqueFd fd_;
    std::string path_;
};

}  // namespace ddprun::worker
