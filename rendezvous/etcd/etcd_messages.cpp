#include "rendezvous/etcd/etcd_messages.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "rendezvous/wire/base64.hpp"

namespace ddprun::rdzv {

namespace {

using Json = nlohmann::json;

/// Deeper than anything etcd says; deep nesting costs the parser memory and the destructor stack.
constexpr int kDepthMax = 16;
constexpr std::size_t kShownBytes = 120;

// ------------------------------------------------------------------------------------- requests

EtcdRequest request(std::string path, const Json& body) {
    return EtcdRequest{std::move(path), body.dump()};
}

Json range_of(std::string_view key) {
    return Json{{"key", base64_encode(key)}};
}

// ------------------------------------------------------------------------------------- answers

Error strange(std::string_view body, std::string_view what) {
    std::string shown(body.substr(0, kShownBytes));
    std::replace_if(
        shown.begin(), shown.end(), [](char byte) { return byte < ' ' || byte > '~'; }, '?');
    return Error{ErrorCode::BadMessage,
                 fmt::format("what answers is no etcd with the v3 JSON gateway ({}): {}; see --ha",
                             what, shown)};
}

/// Discarded if it is no object.
Json parse(std::string_view body) {
    bool is_too_deep = false;
    const auto note_depth = [&](int depth, Json::parse_event_t, Json&) {
        is_too_deep = is_too_deep || depth > kDepthMax;
        return !is_too_deep;
    };
    Json object = Json::parse(body, note_depth, false);
    if (is_too_deep || !object.is_object()) {
        return Json(Json::value_t::discarded);
    }
    return object;
}

/// The member; null if it is not there. `object` may be anything.
const Json& member(const Json& object, const char* name) {
    static const Json kNull;
    if (!object.is_object()) {
        return kNull;
    }
    const auto found = object.find(name);
    return found == object.end() ? kNull : *found;
}

/// 64-bit numbers are text; one that is not there is 0.
template <typename Number>
bool read_number(const Json& object, const char* name, Number& number) {
    const Json& found = member(object, name);
    number = 0;
    if (found.is_null()) {
        return true;
    }
    if (!found.is_string()) {
        return false;
    }
    const std::string& text = found.get_ref<const std::string&>();
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
    return problem == std::errc() && end == text.data() + text.size();
}

bool read_bytes(const Json& object, const char* name, std::string& bytes) {
    const Json& found = member(object, name);
    bytes.clear();
    if (found.is_null()) {
        return true;
    }
    std::optional<std::string> decoded;
    if (found.is_string()) {
        decoded = base64_decode(found.get_ref<const std::string&>());
    }
    if (!decoded) {
        return false;
    }
    bytes = *std::move(decoded);
    return true;
}

bool is_true(const Json& object, const char* name) {
    const Json& found = member(object, name);
    return found.is_boolean() && found.get<bool>();
}

bool read_entry(const Json& object, EtcdEntry& entry) {
    return object.is_object() && read_bytes(object, "key", entry.key) &&
           read_bytes(object, "value", entry.value) &&
           read_number(object, "create_revision", entry.create_revision) &&
           read_number(object, "mod_revision", entry.mod_revision) &&
           read_number(object, "lease", entry.lease);
}

bool read_entries(const Json& range, std::vector<EtcdEntry>& entries) {
    const Json& found = member(range, "kvs");
    if (found.is_null()) {
        return true;
    }
    if (!found.is_array()) {
        return false;
    }
    for (const Json& object : found) {
        if (!read_entry(object, entries.emplace_back())) {
            return false;
        }
    }
    return true;
}

/// The only key of the answer to the range that was the `index`-th part of a transaction.
bool read_part(const Json& transaction, std::size_t index, std::optional<EtcdEntry>& entry) {
    const Json& parts = member(transaction, "responses");
    if (!parts.is_array() || parts.size() <= index) {
        return false;
    }
    std::vector<EtcdEntry> entries;
    if (!read_entries(member(parts[index], "response_range"), entries)) {
        return false;
    }
    if (!entries.empty()) {
        entry = std::move(entries.front());
    }
    return true;
}

bool read_revision(const Json& object, std::uint64_t& revision) {
    return read_number(member(object, "header"), "revision", revision) && revision > 0;
}

Result<EtcdLease> read_lease(std::string_view body, const Json& object, std::int64_t ttl_min) {
    EtcdLease lease;
    if (!read_number(object, "ID", lease.id) || !read_number(object, "TTL", lease.ttl_seconds) ||
        lease.id == 0 || lease.ttl_seconds < ttl_min) {
        return strange(body, "no lease");
    }
    return lease;
}

}  // namespace

EtcdRequest grant_request(std::int64_t ttl_seconds) {
    return request("/v3/lease/grant", Json{{"TTL", std::to_string(ttl_seconds)}});
}

EtcdRequest keep_alive_request(std::int64_t lease) {
    return request("/v3/lease/keepalive", Json{{"ID", std::to_string(lease)}});
}

EtcdRequest revoke_request(std::int64_t lease) {
    return request("/v3/lease/revoke", Json{{"ID", std::to_string(lease)}});
}

EtcdRequest range_request(std::string_view key) {
    return request("/v3/kv/range", range_of(key));
}

EtcdRequest range_request(std::string_view first, std::string_view end, std::size_t limit) {
    return request("/v3/kv/range", Json{{"key", base64_encode(first)},
                                        {"range_end", base64_encode(end)},
                                        {"limit", std::to_string(limit)}});
}

EtcdRequest campaign_request(std::string_view key, std::string_view value, std::int64_t lease) {
    const std::string name = base64_encode(key);
    const Json compare{
        {"key", name}, {"target", "CREATE"}, {"result", "EQUAL"}, {"create_revision", "0"}};
    const Json put{
        {"key", name}, {"value", base64_encode(value)}, {"lease", std::to_string(lease)}};
    return request("/v3/kv/txn",
                   Json{{"compare", Json::array({compare})},
                        {"success", Json::array({Json{{"request_put", put}}})},
                        {"failure", Json::array({Json{{"request_range", range_of(key)}}})}});
}

EtcdRequest guarded_request(const EtcdGuard& guard, std::string_view key,
                            const std::optional<std::string>& value) {
    const std::string name = base64_encode(key);
    const Json leads{{"key", base64_encode(guard.leader_key)},
                     {"target", "CREATE"},
                     {"result", "EQUAL"},
                     {"create_revision", std::to_string(guard.term)}};
    const Json is_unchanged{{"key", name},
                            {"target", "MOD"},
                            {"result", "EQUAL"},
                            {"mod_revision", std::to_string(guard.mod_revision)}};
    Json change;
    if (value) {
        change["request_put"] = Json{{"key", name}, {"value", base64_encode(*value)}};
    } else {
        change["request_delete_range"] = Json{{"key", name}};
    }
    return request(
        "/v3/kv/txn",
        Json{{"compare", Json::array({leads, is_unchanged})},
             {"success", Json::array({change})},
             {"failure", Json::array({Json{{"request_range", range_of(guard.leader_key)}},
                                      Json{{"request_range", range_of(key)}}})}});
}

EtcdRequest watch_request(std::string_view key, std::uint64_t revision) {
    return request("/v3/watch",
                   Json{{"create_request", Json{{"key", base64_encode(key)},
                                                {"start_revision", std::to_string(revision)},
                                                {"filters", Json::array({"NOPUT"})}}}});
}

EtcdRequest compaction_request(std::uint64_t revision) {
    return request("/v3/kv/compaction", Json{{"revision", std::to_string(revision)}});
}

std::string end_of_prefix(std::string prefix) {
    DDP_CHECK(!prefix.empty() && prefix.back() != '\xff');
    prefix.back() = static_cast<char>(prefix.back() + 1);
    return prefix;
}

Result<EtcdLease> read_grant(std::string_view body) {
    return read_lease(body, parse(body), 1);
}

Result<EtcdLease> read_keep_alive(std::string_view body) {
    const Json object = parse(body);
    return read_lease(body, member(object, "result"), 0);
}

Result<EtcdRange> read_range(std::string_view body) {
    const Json object = parse(body);
    EtcdRange range;
    if (!read_revision(object, range.revision) || !read_entries(object, range.entries)) {
        return strange(body, "no range");
    }
    range.has_more = is_true(object, "more");
    return range;
}

Result<EtcdCampaign> read_campaign(std::string_view body) {
    const Json object = parse(body);
    EtcdCampaign campaign;
    if (!read_revision(object, campaign.revision)) {
        return strange(body, "no transaction");
    }
    campaign.has_won = is_true(object, "succeeded");
    if (!campaign.has_won && !read_part(object, 0, campaign.incumbent)) {
        return strange(body, "no transaction");
    }
    return campaign;
}

Result<EtcdGuarded> read_guarded(std::string_view body) {
    const Json object = parse(body);
    EtcdGuarded guarded;
    if (!read_revision(object, guarded.revision)) {
        return strange(body, "no transaction");
    }
    guarded.is_done = is_true(object, "succeeded");
    if (!guarded.is_done &&
        (!read_part(object, 0, guarded.leader) || !read_part(object, 1, guarded.entry))) {
        return strange(body, "no transaction");
    }
    return guarded;
}

Result<EtcdWatched> read_watched(std::string_view line) {
    const Json object = parse(line);
    const Json& result = member(object, "result");
    EtcdWatched watched;
    if (!result.is_object()) {
        // {"error": ...}: the stream is over.
        if (member(object, "error").is_null()) {
            return strange(line, "no watch");
        }
        watched.is_cancelled = true;
        return watched;
    }
    watched.is_cancelled = is_true(result, "canceled");
    const Json& events = member(result, "events");
    for (const Json& event : events.is_array() ? events : Json::array()) {
        const Json& type = member(event, "type");
        watched.is_deleted = watched.is_deleted || (type.is_string() && type == "DELETE");
    }
    return watched;
}

std::optional<std::string> read_error(std::string_view body) {
    const Json object = parse(body);
    const Json& found = member(object, "error");
    if (!found.is_string()) {
        return std::nullopt;
    }
    return found.get<std::string>();
}

}  // namespace ddprun::rdzv
