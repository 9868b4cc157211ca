#include "rendezvous/http/http_request.hpp"

#include <algorithm>
#include <optional>

#include <boost/url/parse.hpp>
#include <fmt/format.h>

#include "base/limits.hpp"
#include "base/printable.hpp"
#include "base/whole_number.hpp"

namespace ddprun::rdzv {

namespace {

namespace urls = boost::urls;

constexpr std::size_t kShownColumns = 80;

Error bad_value(std::string_view path, std::string_view what) {
    const std::string_view takes = path == "/events"    ? "job=NAME, from=NUMBER and follow=0 or 1"
                                   : path == "/metrics" ? "nodes=0 or 1 and ranks=0 or 1"
                                   : path == "/stacks"  ? "job=NAME and rank=NUMBER"
                                   : path == "/logs"
                                       ? "job=NAME, rank=NUMBER, generation=NUMBER, grep=PATTERN, "
                                         "lines=NUMBER and follow=0 or 1"
                                       : "job=NAME";
    return {ErrorCode::InvalidArgument,
            fmt::format("{}: {} takes {}", printable(what, kShownColumns), path, takes)};
}

/// Returns null if the page has no such file.
const PageFile* page_file(std::string_view path) {
    const auto files = page_files();
    const auto found = std::find_if(files.begin(), files.end(),
                                    [path](const PageFile& file) { return file.path == path; });
    return found == files.end() ? nullptr : &*found;
}

/// One of `/logs` and `/stacks`; false: there is no such value.
bool read_of_workers(const std::string& name, const std::string& value, ReadWorkers& read) {
    const bool is_of_logs = read.what == WorkersText::Logs;
    const std::optional<int> number = whole_number<int>(value);
    if (name == "rank" && number && *number >= 0) {
        read.rank = number;
    } else if (is_of_logs && name == "generation" && number && *number > 0) {
        read.generation = static_cast<std::uint64_t>(*number);
    } else if (is_of_logs && name == "lines" && number && *number >= 0) {
        read.last_lines = number;
    } else if (is_of_logs && name == "follow" && number && (*number == 0 || *number == 1)) {
        read.follows = *number == 1;
    } else if (is_of_logs && name == "grep" && value.size() <= Limits{}.read_pattern_bytes_max &&
               value.find('\0') == value.npos) {
        read.pattern = value;
    } else {
        return false;
    }
    return true;
}

/// "job=llama&from=3&follow=1"
Result<void> read_query(std::string_view path, urls::params_encoded_view query,
                        WatchRequest& request) {
    for (const auto& one : query) {
        const std::string name = one.key.decode();
        const std::string value = one.value.decode();
        const bool is_of_events = request.what == WatchRequest::What::Events;
        const bool is_of_metrics = request.what == WatchRequest::What::Metrics;
        const std::optional<std::uint64_t> number = whole_number<std::uint64_t>(value);
        if (name == "job" && !is_of_metrics) {
            request.job = value;
        } else if (is_of_metrics && name == "nodes" && number && *number <= 1) {
            request.figures.nodes = *number == 1;
        } else if (is_of_metrics && name == "ranks" && number && *number <= 1) {
            request.figures.ranks = *number == 1;
        } else if (is_of_events && name == "from" && number) {
            request.from = *number;
        } else if (is_of_events && name == "follow" && number && *number <= 1) {
            request.follows = *number == 1;
        } else if (request.what == WatchRequest::What::Workers &&
                   read_of_workers(name, value, request.read)) {
            continue;
        } else {
            return bad_value(path, name + (one.has_value ? "=" + value : ""));
        }
    }
    return {};
}

}  // namespace

Result<WatchRequest> parse_watch_request(std::string_view method, std::string_view target,
                                         std::string_view accept, std::string_view last_event_id) {
    const auto parsed = urls::parse_origin_form({target.data(), target.size()});
    const std::string path = parsed ? parsed->path() : std::string(target);
    const PageFile* const file = parsed ? page_file(path) : nullptr;
    const bool is_of_workers = path == "/logs" || path == "/stacks";
    const bool is_known =
        path == "/status" || path == "/events" || path == "/metrics" || is_of_workers;
    if (!parsed || (!is_known && file == nullptr)) {
        return Error{
            ErrorCode::NotFound,
            fmt::format("{}: there are /status, /events, /logs, /stacks and /metrics, and a "
                        "page at /",
                        printable(path, kShownColumns))};
    }
    if (method != "GET") {
        return Error{ErrorCode::Refused,
                     fmt::format("{}: only GET is answered", printable(method, kShownColumns))};
    }
    WatchRequest request;
    if (file != nullptr) {
        request.what = WatchRequest::What::Page;
        request.file = file;
        return request;
    }
    if (path == "/metrics") {
        request.what = WatchRequest::What::Metrics;
    } else if (is_of_workers) {
        request.what = WatchRequest::What::Workers;
        request.read.what = path == "/logs" ? WorkersText::Logs : WorkersText::Stacks;
    } else if (path == "/events") {
        request.what = WatchRequest::What::Events;
        request.is_sse = accept.find("text/event-stream") != accept.npos;
        request.follows = request.is_sse;
    }
    if (const Result<void> read = read_query(path, parsed->encoded_params(), request); !read) {
        return read.error();
    }
    // A browser that was cut off says so what it has.
    if (request.is_sse && !last_event_id.empty()) {
        const std::optional<std::uint64_t> last = whole_number<std::uint64_t>(last_event_id);
        if (!last) {
            return bad_value(path, last_event_id);
        }
        request.from = *last + 1;
    }
    return request;
}

}  // namespace ddprun::rdzv
