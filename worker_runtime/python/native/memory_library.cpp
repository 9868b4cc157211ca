#include "worker_runtime/python/native/memory_library.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/memory/agreement.hpp"
#include "worker_runtime/memory/checkpoint_memory.hpp"
#include "worker_runtime/memory/copies.hpp"
#include "worker_runtime/memory/rank_files.hpp"
#include "worker_runtime/python/native/arguments.hpp"

namespace worker = ddprun::worker;
using ddprun::Error;
using ddprun::ErrorCode;
using ddprun::Result;
using ddprun::python::bad;
using ddprun::python::guarded;
using ddprun::python::put;
using ddprun::python::text_of;

/// A step whose files are all on this node.
struct Fetched {
    worker::MemoryCandidate candidate;
    worker::Manifest manifest;
};

struct DdprunMemory {
    std::optional<worker::CheckpointMemory> connection;
    worker::PlaceOnNode place;
    std::string text;  ///< the last one that was handed out
    std::vector<worker::NodeCopies> nodes;
    std::vector<worker::MemoryCandidate> candidates;
    std::optional<Fetched> fetched;  ///< the last one
};

namespace {

/// Runs `act` on the connection.
template <typename Act>
std::int32_t connected(DdprunMemory* memory, DdprunError* error, const Act& act) noexcept {
    return guarded(error, [&]() -> Result<void> {
        if (memory == nullptr || !memory->connection) {
            return bad("no connection to ddprun-memory");
        }
        return act(*memory->connection);
    });
}

Result<void> hand_out(DdprunMemory& memory, const Result<std::string>& from, const char** text) {
    if (!from || text == nullptr) {
        return from ? bad("no place for a text") : from.error();
    }
    memory.text = *from;
    *text = memory.text.c_str();
    return {};
}

Result<std::vector<std::string>> all_of(const char* const* texts, std::uint64_t count) {
    const Result<std::span<const char* const>> list = ddprun::python::list_of(texts, count);
    if (!list) {
        return list.error();
    }
    std::vector<std::string> all;
    for (const char* const text : *list) {
        Result<std::string> one = text_of(text, worker::kManifestBytesMax);
        if (!one) {
            return one.error();
        }
        all.push_back(*std::move(one));
    }
    return all;
}

Result<void> connect(const DdprunMemoryPlace* given, DdprunMemory** handle, const char** text) {
    if (given == nullptr || handle == nullptr || given->local_world_size < 1 ||
        given->local_rank < 0 || given->local_rank > given->rank) {
        return bad("no place of a worker");
    }
    const Result<std::string> socket = text_of(given->socket);
    const Result<std::string> series = text_of(given->series);
    if (!socket || !series) {
        return (socket ? series : socket).error();
    }
    auto memory = std::make_unique<DdprunMemory>();
    memory->place = {.rank = given->rank,
                     .local_rank = given->local_rank,
                     .local_world_size = given->local_world_size};
    worker::MemoryRank own{.group_rank = given->group_rank, .why = worker::kNoMemory};
    if (!socket->empty()) {
        Result<worker::CheckpointMemory> connection = worker::CheckpointMemory::connect(
            *socket, {.series = *series,
                      .rank = given->rank,
                      .generation = ddprun::Generation(given->generation)});
        if (connection) {
            own.has_memory = true;
            own.endpoint = connection->endpoint();
            memory->connection = *std::move(connection);
        } else {
            own.why = connection.error().what;
        }
    }
    const Result<void> done = hand_out(*memory, worker::text_of(own), text);
    *handle = memory.release();
    return done;
}

Result<worker::TensorFile> tensor_file_of(const DdprunTensorFile& given) {
    Result<std::string> name = ddprun::python::plain_name(&given.file);
    Result<std::string> prefix = text_of(given.prefix);
    Result<std::vector<worker::TensorView>> tensors =
        ddprun::python::views_of(given.tensors, given.count);
    if (!name || !prefix) {
        return (name ? prefix : name).error();
    }
    if (!tensors) {
        return tensors.error();
    }
    return worker::TensorFile{
        .name = *std::move(name), .prefix = *std::move(prefix), .tensors = *std::move(tensors)};
}

Result<void> write(worker::CheckpointMemory& connection, std::span<DdprunTensorFile> given,
                   DdprunError* note) {
    std::vector<worker::TensorFile> files;
    for (const DdprunTensorFile& one : given) {
        Result<worker::TensorFile> file = tensor_file_of(one);
        if (!file) {
            return file.error();
        }
        files.push_back(*std::move(file));
    }
    const Result<worker::RankFiles> written = worker::write_files(connection, files);
    if (!written) {
        return written.error();
    }
    for (std::size_t i = 0; i < given.size(); ++i) {
        (void)ddprun::python::fill_in(written->files[i], &given[i].file);
    }
    put(note->text, written->note);
    return {};
}

}  // namespace

extern "C" {

std::int32_t ddprun_checkpoint_memory_connect(const DdprunMemoryPlace* place, DdprunMemory** memory,
                                              const char** text, DdprunError* error) {
    return guarded(error, [&] { return connect(place, memory, text); });
}

void ddprun_checkpoint_memory_close(DdprunMemory* memory) {
    const std::unique_ptr<DdprunMemory> owned(memory);
}

std::int32_t ddprun_checkpoint_memory_agree(DdprunMemory* memory, const char* const* texts,
                                            std::uint64_t count, std::int32_t partner,
                                            std::int32_t* is_kept, std::int32_t* has_partner,
                                            DdprunError* line, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::vector<std::string>> all = all_of(texts, count);
        if (!all || memory == nullptr || is_kept == nullptr || has_partner == nullptr ||
            line == nullptr) {
            return all ? bad("no place for an agreement") : all.error();
        }
        const worker::MemoryAgreement agreement = worker::agreement_of(
            *all, partner < 0 ? std::optional<int>() : std::optional<int>(partner));
        put(line->text, agreement.line);
        *is_kept = agreement.is_kept ? 1 : 0;
        *has_partner = agreement.endpoint.empty() ? 0 : 1;
        if (!agreement.is_kept || agreement.endpoint.empty()) {
            return {};
        }
        return memory->connection ? memory->connection->set_partner(agreement.endpoint)
                                  : bad("no connection to ddprun-memory");
    });
}

std::int32_t ddprun_checkpoint_memory_begin_save(DdprunMemory* memory, std::int64_t step,
                                                 std::uint64_t save, DdprunError* error) {
    return connected(memory, error, [&](worker::CheckpointMemory& connection) {
        connection.begin_save({.step = step, .save = save});
        return Result<void>();
    });
}

std::int32_t ddprun_checkpoint_memory_write(DdprunMemory* memory, DdprunTensorFile* files,
                                            std::uint64_t count, DdprunError* note,
                                            DdprunError* error) {
    return connected(memory, error, [&](worker::CheckpointMemory& connection) -> Result<void> {
        const Result<std::span<DdprunTensorFile>> list = ddprun::python::list_of(files, count);
        if (!list || note == nullptr) {
            return list ? bad("no place for a note") : list.error();
        }
        return write(connection, *list, note);
    });
}

std::int32_t ddprun_checkpoint_memory_manifest(DdprunMemory* memory, std::int64_t step,
                                               const DdprunManifest* manifest, const char** text,
                                               DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<worker::Manifest> all = ddprun::python::manifest_of(step, manifest);
        if (!all || memory == nullptr) {
            return all ? bad("no memory") : all.error();
        }
        return hand_out(*memory, worker::format_manifest(*all), text);
    });
}

std::int32_t ddprun_checkpoint_memory_write_manifest(DdprunMemory* memory, const char* manifest,
                                                     std::int32_t is_isolated, DdprunError* error) {
    return connected(memory, error, [&](worker::CheckpointMemory& connection) -> Result<void> {
        const Result<std::string> text = text_of(manifest, worker::kManifestBytesMax);
        if (!text) {
            return text.error();
        }
        return worker::write_manifest(connection, memory->place, *text, is_isolated != 0);
    });
}

std::int32_t ddprun_checkpoint_memory_seal(DdprunMemory* memory, DdprunError* error) {
    return connected(memory, error, [&](worker::CheckpointMemory& connection) {
        return worker::seal(connection, memory->place);
    });
}

std::int32_t ddprun_checkpoint_memory_copies(DdprunMemory* memory, const char** text,
                                             DdprunError* error) {
    return connected(memory, error, [&](worker::CheckpointMemory& connection) {
        return hand_out(*memory, worker::copies_text(connection, memory->place), text);
    });
}

std::int32_t ddprun_checkpoint_memory_candidates(DdprunMemory* memory, const char* const* texts,
                                                 std::uint64_t count, std::int64_t at_least,
                                                 std::uint64_t at_least_save, std::uint64_t* found,
                                                 const char** line, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::vector<std::string>> all = all_of(texts, count);
        if (!all || memory == nullptr || found == nullptr || line == nullptr) {
            return all ? bad("no place for candidates") : all.error();
        }
        Result<std::vector<worker::NodeCopies>> nodes = worker::nodes_of(*all);
        if (!nodes) {
            return nodes.error();
        }
        memory->nodes = *std::move(nodes);
        memory->candidates =
            worker::candidates_among(memory->nodes, {.step = at_least, .save = at_least_save});
        *found = memory->candidates.size();
        return hand_out(*memory, worker::unlisted_line(memory->nodes), line);
    });
}

std::int32_t ddprun_checkpoint_memory_candidate(const DdprunMemory* memory, std::uint64_t index,
                                                DdprunCandidate* candidate) {
    if (memory == nullptr || candidate == nullptr || index >= memory->candidates.size()) {
        return 1;
    }
    const worker::MemoryCandidate& found = memory->candidates[index];
    *candidate = {.step = found.key.step,
                  .manifest_rank = static_cast<std::int32_t>(found.manifest_node)};
    return 0;
}

std::int32_t ddprun_checkpoint_memory_read_manifest(DdprunMemory* memory, std::uint64_t index,
                                                    const char** text, DdprunError* error) {
    return connected(memory, error, [&](worker::CheckpointMemory& connection) -> Result<void> {
        if (index >= memory->candidates.size()) {
            return bad("no candidate");
        }
        return hand_out(*memory,
                        worker::read_manifest(connection, memory->place, memory->candidates[index]),
                        text);
    });
}

std::int32_t ddprun_checkpoint_memory_fetch(DdprunMemory* memory, std::uint64_t index,
                                            const char* manifest, DdprunError* error) {
    return connected(memory, error, [&](worker::CheckpointMemory& connection) -> Result<void> {
        const Result<std::string> text = text_of(manifest, worker::kManifestBytesMax);
        if (!text || index >= memory->candidates.size()) {
            return text ? bad("no candidate") : text.error();
        }
        Result<worker::Manifest> fetched = worker::fetch_missing(
            connection, memory->place, memory->candidates[index], *text, memory->nodes);
        if (!fetched) {
            return fetched.error();
        }
        memory->fetched = Fetched{memory->candidates[index], *std::move(fetched)};
        return {};
    });
}

std::int32_t ddprun_checkpoint_memory_open(DdprunMemory* memory, DdprunOpen** open,
                                           DdprunInfo* info, DdprunError* error) {
    return connected(memory, error, [&](worker::CheckpointMemory& connection) -> Result<void> {
        if (open == nullptr || info == nullptr || !memory->fetched) {
            return bad("nothing was fetched, or no place for a checkpoint");
        }
        Result<worker::LoadedCheckpoint> loaded = worker::load_copies(
            connection, memory->place, memory->fetched->candidate, memory->fetched->manifest);
        if (!loaded) {
            return loaded.error();
        }
        ddprun::python::hand_out(*std::move(loaded), open, info);
        return {};
    });
}

std::int32_t ddprun_checkpoint_memory_keep(DdprunMemory* memory, const char** line,
                                           DdprunError* error) {
    return connected(memory, error, [&](worker::CheckpointMemory& connection) -> Result<void> {
        if (!memory->fetched) {
            return bad("nothing was fetched");
        }
        return hand_out(
            *memory,
            worker::keep(connection, memory->place, memory->fetched->candidate, memory->nodes),
            line);
    });
}

}  // extern "C"
