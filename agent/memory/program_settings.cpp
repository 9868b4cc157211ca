#include "agent/memory/program_settings.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ddprun::agent {

namespace {

using Json = nlohmann::json;

Error unreadable(const char* why) {
    return {ErrorCode::BadMessage,
            fmt::format("the settings from ddprun cannot be read: {}; install ddprun and "
                        "ddprun-memory of the same version",
                        why)};
}

std::optional<rdzv::JobSecret::Bytes> bytes_of(const std::string& digits) {
    constexpr int kHexadecimal = 16;
    rdzv::JobSecret::Bytes bytes{};
    if (digits.size() != 2 * bytes.size()) {
        return std::nullopt;
    }
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        const char* const from = digits.data() + 2 * i;
        if (std::from_chars(from, from + 2, bytes.at(i), kHexadecimal).ptr != from + 2) {
            return std::nullopt;
        }
    }
    return bytes;
}

}  // namespace

std::string encode_settings(const ProgramSettings& settings) {
    Json object = {{"bytes_max", settings.bytes_max},
                   {"has_peers", settings.has_peers},
                   {"job", settings.job.value()}};
    if (settings.tls.is_on()) {
        object["tls"] = {settings.tls.cert, settings.tls.key, settings.tls.ca};
    }
    if (settings.secret) {
        object["secret"] = fmt::format("{:02x}", fmt::join(settings.secret->reveal(), ""));
        object["origin"] = settings.secret->origin();
    }
    return object.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
}

Result<ProgramSettings> decode_settings(std::string_view line) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) {
        return unreadable("they are no JSON object");
    }
    const auto bytes = object.find("bytes_max");
    const auto peers = object.find("has_peers");
    const auto job = object.find("job");
    if (bytes == object.end() || !bytes->is_number_unsigned() || peers == object.end() ||
        !peers->is_boolean() || job == object.end() || !job->is_string()) {
        return unreadable("a field is missing");
    }
    ProgramSettings settings;
    settings.bytes_max = bytes->get<std::uint64_t>();
    settings.has_peers = peers->get<bool>();
    settings.job = JobId(job->get<std::string>());
    if (const auto tls = object.find("tls"); tls != object.end()) {
        constexpr std::size_t kFiles = 3;
        if (!tls->is_array() || tls->size() != kFiles ||
            !std::ranges::all_of(*tls, [](const Json& file) { return file.is_string(); })) {
            return unreadable("the files of TLS are none");
        }
        settings.tls = {.cert = (*tls)[0].get<std::string>(),
                        .key = (*tls)[1].get<std::string>(),
                        .ca = (*tls)[2].get<std::string>()};
    }
    if (const auto secret = object.find("secret"); secret != object.end()) {
        const auto origin = object.find("origin");
        const auto found =
            secret->is_string() ? bytes_of(secret->get<std::string>()) : std::nullopt;
        if (!found || origin == object.end() || !origin->is_string()) {
            return unreadable("the secret is none");
        }
        settings.secret.emplace(*found, origin->get<std::string>());
    }
    return settings;
}

}  // namespace ddprun::agent
