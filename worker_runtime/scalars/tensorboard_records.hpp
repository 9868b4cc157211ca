#pragma once

#include <cstdint>
#include <string>

#include "base/instant.hpp"

/// The contents of a file of scalars that TensorBoard reads: TFRecords of tensorflow.Event
/// messages (tensorflow's core/util/event.proto, core/framework/summary.proto and
/// core/lib/io/record_writer.cc), version `brain.Event:2`. `now` is Unix time.
namespace ddprun::worker {

/// The first of each file.
[[nodiscard]] std::string version_record(Milliseconds now);

/// The mark of a start at `step`: TensorBoard drops what earlier files have at `step` and later.
[[nodiscard]] std::string start_record(std::int64_t step, Milliseconds now);

/// One value of the curve `tag` at `step`. TensorBoard keeps 32 bits of it.
[[nodiscard]] std::string scalar_record(const std::string& tag, double value, std::int64_t step,
                                        Milliseconds now);

}  // namespace ddprun::worker
