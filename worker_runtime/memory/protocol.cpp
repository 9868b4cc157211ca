#include "worker_runtime/memory/protocol.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "worker_runtime/checkpoint/hashing.hpp"
#include "worker_runtime/checkpoint/json_text.hpp"

namespace ddprun::worker {

namespace {

using Json = nlohmann::json;

constexpr int kMemoryDepthMax = 5;  // steps, a step, its files, a file
constexpr std::uint64_t kNumberMax = std::numeric_limits<std::int64_t>::max();

constexpr std::array<std::pair<std::string_view, MemoryVerb>, 8> kVerbs = {{
    {"hello", MemoryVerb::Hello},
    {"partner", MemoryVerb::Partner},
    {"begin", MemoryVerb::Begin},
    {"written", MemoryVerb::Written},
    {"seal", MemoryVerb::Seal},
    {"list", MemoryVerb::List},
    {"open", MemoryVerb::Open},
    {"fetch", MemoryVerb::Fetch},
}};

constexpr std::array<std::pair<std::string_view, ErrorCode>, 12> kErrorNames = {{
    {"invalid_argument", ErrorCode::InvalidArgument},
    {"not_found", ErrorCode::NotFound},
    {"permission_denied", ErrorCode::PermissionDenied},
    {"address_in_use", ErrorCode::AddressInUse},
    {"unreachable", ErrorCode::Unreachable},
    {"refused", ErrorCode::Refused},
    {"bad_secret", ErrorCode::BadSecret},
    {"bad_message", ErrorCode::BadMessage},
    {"limit_exceeded", ErrorCode::LimitExceeded},
    {"timed_out", ErrorCode::TimedOut},
    {"connection_lost", ErrorCode::ConnectionLost},
    {"system", ErrorCode::System},
}};

template <typename Table, typename Value>
std::string name_in(const Table& table, Value value) {
    const auto row = std::ranges::find(table, value, &Table::value_type::second);
    return std::string(row->first);
}

// Fields with their empty value are left out.
template <typename Value>
void set(Json& object, const char* key, const Value& value) {
    if (value != Value()) {
        object[key] = value;
    }
}

Json json_of(const std::vector<MemoryFile>& files) {
    Json list = Json::array();
    for (const MemoryFile& file : files) {
        Json& object = list.emplace_back(Json{{"name", file.name}, {"size", file.size}});
        set(object, "xxh3_128", file.xxh3_128);
    }
    return list;
}

// Bytes of errors that are not UTF-8 become U+FFFD.
std::string text_of(const Json& object) {
    return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Takes fields out of the objects of one message; keeps the first problem.
class MemoryReader {
public:
    [[nodiscard]] std::optional<Error> take_problem() { return std::exchange(problem_, {}); }

    void refuse(std::string why) {
        if (!problem_) {
            problem_ = Error{ErrorCode::BadMessage, std::move(why)};
        }
    }

    /// Refuses all fields of `object` that are not in `known`.
    void check_fields(const Json& object, std::span<const std::string_view> known) {
        if (!object.is_object()) {
            refuse("a part of the message is no object");
            return;
        }
        for (const auto& [key, value] : object.items()) {
            if (std::ranges::find(known, key) == known.end()) {
                refuse(fmt::format("field {} is unknown", in_quotes(key)));
            }
        }
    }

    std::uint64_t number(const Json& object, const char* key, std::uint64_t most) {
        const Json* const field = find(object, key);
        if (field == nullptr) {
            return 0;
        }
        const auto* const value = field->get_ptr<const Json::number_unsigned_t*>();
        if (value == nullptr || *value > most) {
            refuse(fmt::format("\"{}\" is no number from 0 to {}", key, most));
            return 0;
        }
        return *value;
    }

    std::string text(const Json& object, const char* key) {
        const Json* const field = find(object, key);
        const auto* const value =
            field == nullptr ? nullptr : field->get_ptr<const Json::string_t*>();
        if (field != nullptr && value == nullptr) {
            refuse(fmt::format("\"{}\" is no text", key));
        }
        return value == nullptr ? std::string() : *value;
    }

    bool flag(const Json& object, const char* key) {
        const Json* const field = find(object, key);
        if (field != nullptr && !field->is_boolean()) {
            refuse(fmt::format("\"{}\" is neither true nor false", key));
        }
        return field != nullptr && field->is_boolean() && field->get<bool>();
    }

    /// An empty list if it is absent.
    Json list(const Json& object, const char* key) {
        const Json* const field = find(object, key);
        if (field != nullptr && !field->is_array()) {
            refuse(fmt::format("\"{}\" is no list", key));
        }
        return field != nullptr && field->is_array() ? *field : Json::array();
    }

    /// The value that `name` has in `table`; its first one if that is unknown.
    template <typename Table>
    auto one_of(const Table& table, const std::string& name) {
        const auto row = std::ranges::find(table, name, &Table::value_type::first);
        if (row == table.end()) {
            refuse(fmt::format("{} is unknown", in_quotes(name)));
        }
        return row == table.end() ? table.front().second : row->second;
    }

    StepKey key(const Json& object) {
        return {.generation = Generation(number(object, "generation", kNumberMax)),
                .step = static_cast<std::int64_t>(number(object, "step", kNumberMax)),
                .save = number(object, "save", kNumberMax)};
    }

    std::vector<MemoryFile> files(const Json& object) {
        constexpr std::array<std::string_view, 3> kKnown = {"name", "size", "xxh3_128"};
        std::vector<MemoryFile> files;
        std::uint64_t bytes = 0;
        for (const Json& entry : list(object, "files")) {
            check_fields(entry, kKnown);
            if (problem_) {
                break;
            }
            MemoryFile& file = files.emplace_back();
            file.name = text(entry, "name");
            file.size = number(entry, "size", kNumberMax - bytes);
            bytes += file.size;
            file.xxh3_128 = text(entry, "xxh3_128");
            if (!is_memory_file_name(file.name)) {
                refuse(fmt::format("{} is no name of a file", in_quotes(file.name)));
            } else if (std::ranges::count(files, file.name, &MemoryFile::name) > 1) {
                refuse(fmt::format("{} is listed twice", file.name));
            } else if (!file.xxh3_128.empty() && !is_hex(file.xxh3_128)) {
                refuse(fmt::format("{} is no checksum", in_quotes(file.xxh3_128)));
            }
        }
        return files;
    }

private:
    static bool is_hex(const std::string& text) {
        return text.size() == kXxh3HexDigits &&
               text.find_first_not_of("0123456789abcdef") == std::string::npos;
    }

    static const Json* find(const Json& object, const char* key) {
        const auto found = object.find(key);
        return found == object.end() ? nullptr : &*found;
    }

    std::optional<Error> problem_;
};

Result<Json> parse_packet(std::string_view text) {
    if (text.size() > kMemoryPacketBytesMax) {
        return Error{ErrorCode::BadMessage, fmt::format("it has {} bytes, allowed are {}",
                                                        text.size(), kMemoryPacketBytesMax)};
    }
    return parse_json(text, kMemoryDepthMax);
}

Error bad_message(const char* message, const Error& why) {
    return Error{
        ErrorCode::BadMessage,
        fmt::format("{} of the checkpoints in memory cannot be read: {}", message, why.what)};
}

}  // namespace

bool is_memory_file_name(std::string_view name) {
    constexpr std::string_view kAllowed =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return !name.empty() && name.size() <= kManifestFileNameBytesMax && name.front() != '.' &&
           name.find_first_not_of(kAllowed) == std::string_view::npos;
}

std::string encode(const MemoryRequest& request) {
    Json object = {{"verb", name_in(kVerbs, request.verb)}};
    set(object, "series", request.series);
    set(object, "rank", request.rank);
    set(object, "generation", request.key.generation.value());
    set(object, "step", request.key.step);
    set(object, "save", request.key.save);
    set(object, "endpoint", request.endpoint);
    if (!request.files.empty()) {
        object["files"] = json_of(request.files);
    }
    return text_of(object);
}

std::string encode(const MemoryReply& reply) {
    Json object = Json::object();
    if (reply.error) {
        object["error"] = {{"code", name_in(kErrorNames, reply.error->code)},
                           {"what", reply.error->what}};
    }
    set(object, "note", reply.note);
    set(object, "endpoint", reply.endpoint);
    for (const MemoryStep& step : reply.steps) {
        Json& entry = object["steps"].emplace_back(Json{{"generation", step.key.generation.value()},
                                                        {"step", step.key.step},
                                                        {"save", step.key.save},
                                                        {"is_sealed", step.is_sealed}});
        entry["files"] = json_of(step.files);
    }
    return text_of(object);
}

Result<MemoryRequest> decode_memory_request(std::string_view text) {
    constexpr std::array<std::string_view, 8> kKnown = {"verb", "series", "rank",     "generation",
                                                        "step", "save",   "endpoint", "files"};
    const Result<Json> json = parse_packet(text);
    if (!json) {
        return bad_message("a request", json.error());
    }
    MemoryReader reader;
    reader.check_fields(*json, kKnown);
    MemoryRequest request;
    request.verb = reader.one_of(kVerbs, reader.text(*json, "verb"));
    request.series = reader.text(*json, "series");
    if (request.series.size() > kMemorySeriesBytesMax) {
        reader.refuse(fmt::format("\"series\" has {} bytes, allowed are {}", request.series.size(),
                                  kMemorySeriesBytesMax));
    }
    request.rank = static_cast<int>(
        reader.number(*json, "rank", std::uint64_t{std::numeric_limits<int>::max()}));
    request.key = reader.key(*json);
    request.endpoint = reader.text(*json, "endpoint");
    request.files = reader.files(*json);
    if (const std::optional<Error> problem = reader.take_problem()) {
        return bad_message("a request", *problem);
    }
    return request;
}

Result<MemoryReply> decode_memory_reply(std::string_view text) {
    constexpr std::array<std::string_view, 4> kKnown = {"error", "note", "endpoint", "steps"};
    constexpr std::array<std::string_view, 2> kKnownOfError = {"code", "what"};
    constexpr std::array<std::string_view, 5> kKnownOfStep = {"generation", "step", "save",
                                                              "is_sealed", "files"};
    const Result<Json> json = parse_packet(text);
    if (!json) {
        return bad_message("a reply", json.error());
    }
    MemoryReader reader;
    reader.check_fields(*json, kKnown);
    MemoryReply reply;
    if (const auto error = json->find("error"); error != json->end()) {
        reader.check_fields(*error, kKnownOfError);
        if (error->is_object()) {
            reply.error = Error{reader.one_of(kErrorNames, reader.text(*error, "code")),
                                reader.text(*error, "what")};
        }
    }
    reply.note = reader.text(*json, "note");
    reply.endpoint = reader.text(*json, "endpoint");
    for (const Json& entry : reader.list(*json, "steps")) {
        reader.check_fields(entry, kKnownOfStep);
        if (!entry.is_object()) {
            break;
        }
        MemoryStep& step = reply.steps.emplace_back();
        step.key = reader.key(entry);
        step.is_sealed = reader.flag(entry, "is_sealed");
        step.files = reader.files(entry);
    }
    if (const std::optional<Error> problem = reader.take_problem()) {
        return bad_message("a reply", *problem);
    }
    return reply;
}

Result<void> send_packet(int socket, std::string_view text, const std::vector<int>& descriptors) {
    if (text.size() > kMemoryPacketBytesMax || descriptors.size() > kMemoryDescriptorsMax) {
        return Error{
            ErrorCode::LimitExceeded,
            fmt::format("a message of the checkpoints in memory has {} bytes and {} descriptors, "
                        "allowed are {} and {}",
                        text.size(), descriptors.size(), kMemoryPacketBytesMax,
                        kMemoryDescriptorsMax)};
    }
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMemoryDescriptorsMax * sizeof(int))> control{};
    std::string bytes(text);
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!descriptors.empty()) {
        const std::size_t size = descriptors.size() * sizeof(int);
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(size);
        cmsghdr* const header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(size);
        std::memcpy(CMSG_DATA(header), descriptors.data(), size);
    }
    ssize_t sent = 0;
    do {
        sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) {
        return Error{ErrorCode::ConnectionLost, "the other end has closed the connection"};
    }
    if (sent < 0) {
        return system_error(errno, "cannot send a message of the checkpoints in memory");
    }
    return {};
}

Result<MemoryPacket> receive_packet(int socket) {
    MemoryPacket packet;
    packet.text.resize(kMemoryPacketBytesMax);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMemoryDescriptorsMax * sizeof(int))> control{};
    iovec part{packet.text.data(), packet.text.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ssize_t got = 0;
    do {
        got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) {
        return Error{ErrorCode::ConnectionLost, "the other end has closed the connection"};
    }
    if (got < 0) {
        return system_error(errno, "cannot receive a message of the checkpoints in memory");
    }
    packet.text.resize(static_cast<std::size_t>(got));
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            packet.descriptors.emplace_back(fd);
        }
    }
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("a message of the checkpoints in memory has more than {} bytes or "
                                 "{} descriptors, or this process may open no more files",
                                 kMemoryPacketBytesMax, kMemoryDescriptorsMax)};
    }
    return packet;
}

}  // namespace ddprun::worker
