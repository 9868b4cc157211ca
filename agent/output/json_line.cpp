#include "agent/output/json_line.hpp"

#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ddprun::agent {

namespace {

using nlohmann::json;

std::string quoted(std::string_view text) {
    return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

JsonLine::JsonLine(std::string_view hostname, std::string_view stream,
                   const std::optional<LineOrigin>& worker)
    : origin_(fmt::format(R"(,"host":{},"stream":{})", quoted(hostname), quoted(stream))) {
    if (worker) {
        origin_ +=
            fmt::format(R"(,"rank":{},"local_rank":{},"generation":{})", worker->rank.value(),
                        worker->local_rank.value(), worker->generation.value());
    }
}

void JsonLine::append(Milliseconds time, std::string_view message, std::string& out) const {
    const std::time_t seconds = std::chrono::floor<std::chrono::seconds>(time).count();
    out += fmt::format(R"({{"time":"{:%Y-%m-%dT%H:%M:%S}.{:03}Z"{},"message":{}}})",
                       fmt::gmtime(seconds), time.count() % 1000, origin_, quoted(message));
    out.push_back('\n');
}

}  // namespace ddprun::agent
