#include "worker_runtime/scalars/tensorboard_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <protozero/pbf_builder.hpp>
#include <system_error>
#include <utility>

#include <boost/crc.hpp>
#include <fmt/format.h>

#include "base/error.hpp"

namespace ddprun::worker {

namespace {

// Numbers of the fields, from event.proto and summary.proto.
enum class EventField : protozero::pbf_tag_type {
    WallTime = 1,
    Step = 2,
    FileVersion = 3,
    Summary = 5,
    SessionLog = 7,
};
enum class SummaryField : protozero::pbf_tag_type { Value = 1 };
enum class ValueField : protozero::pbf_tag_type { Tag = 1, SimpleValue = 2 };
enum class SessionLogField : protozero::pbf_tag_type { Status = 1 };
constexpr std::int32_t kSessionStart = 1;

using EventBuilder = protozero::pbf_builder<EventField>;

/// An event of that time and step, to which `fill` adds what it says.
template <typename Fill>
std::string event_at(std::int64_t step, Milliseconds now, const Fill& fill) {
    std::string bytes;
    EventBuilder event(bytes);
    event.add_double(EventField::WallTime, static_cast<double>(now.count()) / 1000);
    event.add_int64(EventField::Step, step);
    fill(event);
    return bytes;
}

std::string version_event(Milliseconds now) {
    return event_at(0, now, [](EventBuilder& event) {
        event.add_string(EventField::FileVersion, "brain.Event:2");
    });
}

std::string start_event(std::int64_t step, Milliseconds now) {
    return event_at(step, now, [](EventBuilder& event) {
        protozero::pbf_builder<SessionLogField> log(event, EventField::SessionLog);
        log.add_enum(SessionLogField::Status, kSessionStart);
    });
}

std::string scalar_event(const std::string& tag, double value, std::int64_t step,
                         Milliseconds now) {
    return event_at(step, now, [&tag, value](EventBuilder& event) {
        protozero::pbf_builder<SummaryField> summary(event, EventField::Summary);
        protozero::pbf_builder<ValueField> one(summary, SummaryField::Value);
        one.add_string(ValueField::Tag, tag);
        one.add_float(ValueField::SimpleValue, static_cast<float>(value));
    });
}

static_assert(std::endian::native == std::endian::little, "a TFRecord's numbers are little-endian");

template <typename Number>
void append_number(std::string& bytes, Number number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

/// CRC-32C, rotated and offset as record_writer.cc does, so that a checksum of checksums is none.
std::uint32_t masked_crc(const std::string& bytes) {
    boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
    crc.process_bytes(bytes.data(), bytes.size());
    return std::rotr(static_cast<std::uint32_t>(crc.checksum()), 15) + 0xA282EAD8U;
}

std::string record_of(const std::string& event) {
    std::string record;
    append_number(record, static_cast<std::uint64_t>(event.size()));
    append_number(record, masked_crc(record));
    record += event;
    append_number(record, masked_crc(event));
    return record;
}

}  // namespace

Result<TensorBoardFile> TensorBoardFile::create(const std::string& folder,
                                                const TensorBoardFileName& name, std::int64_t step,
                                                Milliseconds now) {
    std::error_code problem;
    std::filesystem::create_directories(folder, problem);
    if (problem) {
        return system_error(problem.value(), folder + " cannot be made");
    }
    std::string path = fmt::format("{}/events.out.tfevents.{}.{}.{}.{}", folder, name.started,
                                   name.hostname, name.pid, name.generation);
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    if (!fd.is_open()) {
        return system_error(errno, path + " cannot be created");
    }
    TensorBoardFile file(std::move(fd), std::move(path));
    Result<void> begun = file.append(version_event(now));
    if (begun) {
        begun = file.append(start_event(step, now));
    }
    return begun ? Result<TensorBoardFile>(std::move(file))
                 : Result<TensorBoardFile>(begun.error());
}

Result<void> TensorBoardFile::scalar(const std::string& tag, double value, std::int64_t step,
                                     Milliseconds now) {
    return append(scalar_event(tag, value, step, now));
}

Result<void> TensorBoardFile::append(const std::string& event) {
    const std::string record = record_of(event);
    ssize_t written = 0;
    do {
        written = ::write(fd_.get(), record.data(), record.size());
    } while (written < 0 && errno == EINTR);
    if (written < 0) {
        return system_error(errno, path_ + " cannot be written");
    }
    if (static_cast<std::size_t>(written) < record.size()) {
        return Error{ErrorCode::System, path_ + " cannot be written: the disk is full"};
    }
    return {};
}

}  // namespace ddprun::worker
