#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "rendezvous/events/figures_of.hpp"
#include "rendezvous/http/page_files.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// What a watcher asks for: `/status`, or `/events`, with `?from=N`, `&follow=1`, or with `Accept:
/// text/event-stream`, which follows. Both with `job=NAME` where there are several. Or `/logs`,
/// with `rank=R`, `generation=N`, `grep=PATTERN`, `lines=N` and `follow=1`, or `/stacks`, with
/// `rank=R`, of one job, too. Or `/metrics`, with `nodes=1` and `ranks=1` those of each node
/// and rank, too; or `/`, the page, and its files.
struct WatchRequest {
    enum class What { Status, Events, Metrics, Workers, Page };
    What what = What::Status;
    std::string job;                 ///< empty: of status all, of events the only one
    std::uint64_t from = 1;          ///< of events: the first that is wanted
    bool follows = false;            ///< of events: those to come, too
    bool is_sse = false;             ///< as server-sent events; else a line each
    FiguresOf figures{};             ///< of metrics
    ReadWorkers read;                ///< of workers
    const PageFile* file = nullptr;  ///< of the page
};

/// The request that has these method, target and headers (empty: there is none). Failure says what
/// there is to ask for: NotFound another path, Refused another method, InvalidArgument a value.
/// Pure; the texts may be anybody's.
[[nodiscard]] Result<WatchRequest> parse_watch_request(std::string_view method,
                                                       std::string_view target,
                                                       std::string_view accept,
                                                       std::string_view last_event_id);

}  // namespace ddprun::rdzv
