#include "worker_runtime/checkpoint/publishing.hpp"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/os/unique_fd.hpp"
#include "worker_runtime/checkpoint/checkpoint_files.hpp"
#include "worker_runtime/checkpoint/checkpoint_folder.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/folder.hpp"
#include "worker_runtime/checkpoint/old_checkpoints.hpp"
#include "worker_runtime/checkpoint/pins.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"

namespace ddprun::worker {

namespace {

constexpr const char* kModelIndexName = "model.safetensors.index.json";

std::string folder_of(const PartialCheckpoint& partial) {
    return path_of(partial.dir, partial.name);
}

/// Fails if `bytes` are more than a user may still write there.
Result<void> check_space(const std::string& dir, std::uint64_t bytes) {
    struct statvfs status {};
    if (::statvfs(dir.c_str(), &status) != 0) {
        return system_error(errno, fmt::format("the free space of {} cannot be read", dir));
    }
    const std::uint64_t free = std::uint64_t{status.f_bavail} * status.f_frsize;
    if (free < bytes) {
        return system_error(ENOSPC, fmt::format("{} bytes are needed and {} are free (free space "
                                                "there or name another folder)",
                                                bytes, free));
    }
    return {};
}

Error cannot_hold(const std::string& dir, const Error& why) {
    return {why.code, fmt::format("folder {} cannot hold checkpoints: {}; name one that every node "
                                  "sees and this user may write",
                                  dir, why.what)};
}

Result<ManifestFile> write_into(const PartialCheckpoint& partial, const std::string& name,
                                const std::vector<std::span<const std::byte>>& pieces) {
    const std::string folder = folder_of(partial);
    const Result<UniqueFd> folder_fd = open_folder(folder);
    if (!folder_fd) {
        return folder_fd.error();
    }
    return write_file(folder_fd->get(), name, path_of(folder, name), pieces);
}

/// The manifest and all names are on the disk.
Result<void> complete(const PartialCheckpoint& partial, const Manifest& manifest) {
    const Result<std::string> text = format_manifest(manifest);
    if (!text) {
        return text.error();
    }
    const std::string folder = folder_of(partial);
    const Result<UniqueFd> folder_fd = open_folder(folder);
    if (!folder_fd) {
        return folder_fd.error();
    }
    const std::string name(kManifestName);
    const Result<ManifestFile> written = write_file(folder_fd->get(), name, path_of(folder, name),
                                                    {std::as_bytes(std::span(*text))});
    if (!written) {
        return written.error();
    }
    const std::optional<Error> problem = sync_folder(folder_fd->get(), folder);
    return problem ? Result<void>(*problem) : Result<void>();
}

/// Gives an old checkpoint a name that readers ignore, so that none finds half of it; returns its
/// path then, none if it stays: someone has pinned it meanwhile.
Result<std::optional<std::string>> set_aside(const std::string& dir, std::int64_t step) {
    const std::string place = path_of(dir, step_folder_name(step));
    const std::string aside = path_of(dir, aside_name(step, kPartialEnding));
    if (::rename(place.c_str(), aside.c_str()) != 0) {
        return system_error(errno, fmt::format("old checkpoint {} cannot be removed", place));
    }
    if (!is_pinned(aside)) {
        return std::optional(aside);
    }
    if (::rename(aside.c_str(), place.c_str()) != 0) {
        return system_error(
            errno, fmt::format("pinned checkpoint {} stays under the name {}", place, aside));
    }
    return std::optional<std::string>();
}

// Only what looks complete is counted, so that torn checkpoints do not push out the last good one.
// Newer ones are left alone: training went on from before them, because they could not be read.
void set_old_aside(const std::string& dir, std::int64_t written, const PublishOptions& options,
                   std::vector<std::string>& aside) {
    const Result<std::vector<std::int64_t>> steps = list_checkpoints(dir);
    if (!steps) {
        options.on_warning("old checkpoints are not removed: " + steps.error().what);
        return;
    }
    int kept = 0;
    for (const std::int64_t step : *steps) {
        const bool is_milestone = options.keep_every > 0 && step % options.keep_every == 0;
        if (step > written ||
            (step < written && (is_milestone || is_pinned(path_of(dir, step_folder_name(step)))))) {
            continue;
        }
        if (step == written || (kept < options.keep && look_into(dir, step).has_value())) {
            ++kept;
        } else if (kept >= options.keep) {
            const Result<std::optional<std::string>> old = set_aside(dir, step);
            if (!old) {
                options.on_warning(old.error().what);
            } else if (old->has_value()) {
                aside.push_back(**old);
            }
        }
    }
}

/// The checkpoint that this one replaces may be pinned; then this one is.
Result<void> keep_pin(const PartialCheckpoint& partial) {
    if (!is_pinned(path_of(partial.dir, step_folder_name(partial.step)))) {
        return {};
    }
    const Result<ManifestFile> pin = write_into(partial, std::string(kPinName), {});
    return pin ? Result<void>() : Result<void>(pin.error());
}

/// The path of the replaced checkpoint; empty if there was none.
Result<std::string> put_durably_in_place(const PartialCheckpoint& partial,
                                         const PublishOptions& options) {
    if (options.keep < 1) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("{} checkpoints are to be kept; give 1 or more", options.keep)};
    }
    if (options.keep_every < 0) {
        return Error{
            ErrorCode::InvalidArgument,
            fmt::format("every {}th checkpoint is to be kept; give 0 or more", options.keep_every)};
    }
    const Result<UniqueFd> dir_fd = open_folder(partial.dir);
    if (!dir_fd) {
        return dir_fd.error();
    }
    if (options.is_isolated()) {
        return Error{ErrorCode::Refused,
                     "this node is isolated, another generation may be running; nothing is "
                     "to be done, the group starts again from the newest checkpoint"};
    }
    const Result<PutInPlace> put =
        put_in_place(dir_fd->get(), partial.name, partial.step, Exchange::IfPossible);
    if (!put) {
        return put.error();
    }
    if (const std::optional<Error> problem = sync_folder(dir_fd->get(), partial.dir)) {
        take_back(dir_fd->get(), partial.name, partial.step, *put);
        return *problem;
    }
    return put->replaced.empty() ? std::string() : path_of(partial.dir, put->replaced);
}

}  // namespace

Result<PartialCheckpoint> begin_probe(const std::string& dir) {
    const Result<PartialCheckpoint> partial = begin_checkpoint(dir, 0, 0);
    return partial ? partial : Result<PartialCheckpoint>(cannot_hold(dir, partial.error()));
}

Result<void> probe(const PartialCheckpoint& partial, const std::string& name) {
    // NFS compares the names in a folder with the server's when it is opened. Else a node that has
    // looked for `dir` before may still miss it.
    std::error_code unknown;
    (void)open_folder(std::filesystem::absolute(partial.dir, unknown).parent_path());
    const Result<ManifestFile> written = write_into(partial, name, {});
    return written ? Result<void>() : Result<void>(cannot_hold(partial.dir, written.error()));
}

Result<void> check_checkpoint_folder(const std::string& dir) {
    const Result<PartialCheckpoint> partial = begin_probe(dir);
    if (!partial) {
        return partial.error();
    }
    const Result<void> usable = probe(*partial, "probe");
    abandon(*partial);
    return usable;
}

Result<PartialCheckpoint> begin_checkpoint(const std::string& dir, std::int64_t step,
                                           std::uint64_t bytes) {
    const Result<UniqueFd> dir_fd = open_or_create_folder(dir);
    if (!dir_fd) {
        return dir_fd.error();
    }
    if (const Result<void> enough = check_space(dir, bytes); !enough) {
        return enough.error();
    }
    PartialCheckpoint partial{.dir = dir, .name = aside_name(step, kPartialEnding), .step = step};
    if (::mkdir(folder_of(partial).c_str(), 0777) != 0) {
        return system_error(errno, fmt::format("folder {} cannot be created", folder_of(partial)));
    }
    return partial;
}

std::string tensor_file_name(const std::string& kind, int number, int count) {
    return fmt::format("{}-{:05}-of-{:05}.safetensors", kind, number, count);
}

Result<ManifestFile> write_tensors(const PartialCheckpoint& partial, const std::string& name,
                                   const std::string& prefix,
                                   const std::vector<TensorView>& tensors) {
    const Result<SafetensorsPlan> plan = plan_safetensors(tensors, prefix);
    return plan ? write_into(partial, name, pieces_of(*plan)) : Result<ManifestFile>(plan.error());
}

Result<ManifestFile> write_model_index(const PartialCheckpoint& partial,
                                       const std::map<std::string, std::string>& file_by_tensor,
                                       std::uint64_t bytes) {
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", bytes}}},
                                          {"weight_map", file_by_tensor}};
    const std::string text = index.dump(2) + "\n";
    return write_into(partial, kModelIndexName, {std::as_bytes(std::span(text))});
}

Result<std::string> publish(const PartialCheckpoint& partial, const Manifest& manifest,
                            const PublishOptions& options) {
    Result<void> completed = keep_pin(partial);
    if (completed) {
        completed = complete(partial, manifest);
    }
    const Result<std::string> replaced =
        completed ? put_durably_in_place(partial, options) : completed.error();
    if (!replaced) {
        abandon(partial);
        return replaced.error();
    }
    std::vector<std::string> aside;
    if (!replaced->empty()) {
        // Pinned since keep_pin().
        const Result<void> pinned =
            is_pinned(*replaced) ? pin_checkpoint(partial.dir, partial.step) : Result<void>();
        if (pinned) {
            aside.push_back(*replaced);
        } else {
            options.on_warning(pinned.error().what);
        }
    }
    set_old_aside(partial.dir, partial.step, options, aside);
    if (options.old != nullptr) {
        options.old->remove(std::move(aside));
    } else {
        remove_folders(aside, options.on_warning);
    }
    return path_of(partial.dir, step_folder_name(partial.step));
}

void abandon(const PartialCheckpoint& partial) {
    remove_all_of(folder_of(partial));
}

Result<std::string> publish_checkpoint(const std::string& dir, const CheckpointInfo& info,
                                       const std::vector<TensorView>& tensors,
                                       const PublishOptions& options) {
    const auto failed = [&](const Error& why) { return not_written(dir, info.step, why); };
    std::uint64_t bytes = 0;
    for (const TensorView& tensor : tensors) {
        bytes += tensor.bytes.size();
    }
    const Result<PartialCheckpoint> partial = begin_checkpoint(dir, info.step, bytes);
    if (!partial) {
        return failed(partial.error());
    }
    const Result<ManifestFile> file =
        write_tensors(*partial, tensor_file_name("model", 1, 1), {}, tensors);
    if (!file) {
        abandon(*partial);
        return failed(file.error());
    }
    const Result<std::string> published =
        publish(*partial, {.info = info, .files = {*file}}, options);
    return published ? published : failed(published.error());
}

Error not_written(const std::string& dir, std::int64_t step, const Error& why) {
    return {why.code,
            fmt::format("checkpoint of step {} was not written to {}: {}", step, dir, why.what)};
}

}  // namespace ddprun::worker
