#include "worker_runtime/scalars/tensorboard_records.hpp"

#include <bit>
#include <protozero/pbf_builder.hpp>

#include <boost/crc.hpp>

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

/// An event of that time and step, to which `fill` adds what it says.
template <typename Fill>
std::string record_at(std::int64_t step, Milliseconds now, const Fill& fill) {
    std::string bytes;
    EventBuilder event(bytes);
    event.add_double(EventField::WallTime, static_cast<double>(now.count()) / 1000);
    event.add_int64(EventField::Step, step);
    fill(event);
    std::string record;
    append_number(record, static_cast<std::uint64_t>(bytes.size()));
    append_number(record, masked_crc(record));
    record += bytes;
    append_number(record, masked_crc(bytes));
    return record;
}

}  // namespace

std::string version_record(Milliseconds now) {
    return record_at(0, now, [](EventBuilder& event) {
        event.add_string(EventField::FileVersion, "brain.Event:2");
    });
}

std::string start_record(std::int64_t step, Milliseconds now) {
    return record_at(step, now, [](EventBuilder& event) {
        protozero::pbf_builder<SessionLogField> log(event, EventField::SessionLog);
        log.add_enum(SessionLogField::Status, kSessionStart);
    });
}

std::string scalar_record(const std::string& tag, double value, std::int64_t step,
                          Milliseconds now) {
    return record_at(step, now, [&tag, value](EventBuilder& event) {
        protozero::pbf_builder<SummaryField> summary(event, EventField::Summary);
        protozero::pbf_builder<ValueField> one(summary, SummaryField::Value);
        one.add_string(ValueField::Tag, tag);
        one.add_float(ValueField::SimpleValue, static_cast<float>(value));
    });
}

}  // namespace ddprun::worker
