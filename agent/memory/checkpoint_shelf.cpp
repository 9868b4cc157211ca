#include "agent/memory/checkpoint_shelf.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.hpp"

namespace ddprun::agent {

namespace {

using worker::MemoryFile;

bool is_named(const std::vector<MemoryFile>& files, const std::string& name) {
    return std::ranges::find(files, name, &MemoryFile::name) != files.end();
}

std::string text_of(const StepKey& key) {
    return fmt::format("step {} of generation {}", key.step, key.generation.value());
}

std::string in_mebibytes(std::uint64_t bytes) {
    constexpr double kMebibyte = 1 << 20;
    return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMebibyte);
}

}  // namespace

Result<void> CheckpointShelf::greet(Generation generation) {
    if (generation < newest_) {
        return Error{ErrorCode::Refused,
                     fmt::format("generation {} is over, generation {} has begun; its checkpoints "
                                 "are not kept in memory any more",
                                 generation.value(), newest_.value())};
    }
    newest_ = generation;
    return {};
}

Result<void> CheckpointShelf::check_new(const ShelfOwner& owner, const StepKey& key,
                                        const std::vector<MemoryFile>& files) const {
    if (owner.kind != ShelfOwner::Kind::Fetched && key.generation < newest_) {
        return Error{ErrorCode::Refused, fmt::format("{} is stale: generation {} has begun",
                                                     text_of(key), newest_.value())};
    }
    if (owner.kind == ShelfOwner::Kind::Worker && sealed_ == key) {
        return Error{
            ErrorCode::Refused,
            fmt::format("{} is sealed in memory already, and stays as it is", text_of(key))};
    }
    for (const MemoryFile& file : files) {
        const auto found = files_.find({key, file.name});
        if (found != files_.end() && (found->second.owner != owner || sealed_ == key)) {
            return Error{ErrorCode::Refused,
                         fmt::format("{} of {} is here already, written by rank {}", file.name,
                                     text_of(key), found->second.owner.rank.value())};
        }
    }
    return {};
}

Result<std::vector<CheckpointShelf::Room>> CheckpointShelf::begin(
    const ShelfOwner& owner, const StepKey& key, const std::vector<MemoryFile>& files) {
    if (const Result<void> allowed = check_new(owner, key, files); !allowed) {
        return allowed.error();
    }
    forget_before(owner, key, files);
    std::uint64_t bytes = 0;
    for (const MemoryFile& file : files) {
        // Past the bound the sum stays, so that it cannot wrap around.
        bytes = file.size > bytes_max_ || bytes > bytes_max_ ? bytes_max_ + 1 : bytes + file.size;
    }
    if (bytes > bytes_max_ || bytes_in_files_ > bytes_max_ - bytes ||
        files_.size() + files.size() > files_max_) {
        return Error{
            ErrorCode::LimitExceeded,
            fmt::format(
                "no memory for {} of {}: they have {}, {} are in use, and "
                "--memory-checkpoints allows {} and {} files; a node needs twice its part "
                "of a checkpoint, and four times with --memory-replicas 1",
                files.size() == 1 ? files.front().name : fmt::format("{} files", files.size()),
                text_of(key), in_mebibytes(bytes), in_mebibytes(bytes_in_files_),
                in_mebibytes(bytes_max_), files_max_)};
    }
    std::vector<Room> rooms;
    for (const MemoryFile& file : files) {
        rooms.push_back(take_free(owner, key.generation, file.size));
    }
    bytes_in_files_ += bytes;
    for (std::size_t i = 0; i < files.size(); ++i) {
        if (rooms[i].is_new) {
            rooms[i].buffer = BufferId(++last_buffer_);
        }
        files_[{key, files[i].name}] =
            File{.owner = owner,
                 .what = {.name = files[i].name, .size = files[i].size, .xxh3_128 = {}},
                 .buffer = rooms[i].buffer};
    }
    // The free buffers that no file has taken make room, the oldest first.
    while (bytes_used() > bytes_max_ || files_.size() + free_.size() > files_max_) {
        bytes_free_ -= free_.front().size;
        dropped_.push_back(free_.front().buffer);
        free_.erase(free_.begin());
    }
    return rooms;
}

CheckpointShelf::Room CheckpointShelf::take_free(const ShelfOwner& owner, Generation generation,
                                                 std::uint64_t size) {
    const auto free = std::ranges::find_if(free_, [&](const Free& one) {
        return one.size == size && may_take(one, owner, generation);
    });
    if (free == free_.end()) {
        return {.size = size, .is_new = true};
    }
    const Room room{.buffer = free->buffer, .size = size};
    bytes_free_ -= size;
    free_.erase(free);
    return room;
}

bool CheckpointShelf::may_take(const Free& free, const ShelfOwner& owner,
                               Generation generation) const {
    return !free.writer || free.generation < generation ||
           (owner.kind == ShelfOwner::Kind::Worker && owner.rank == *free.writer);
}

void CheckpointShelf::forget_before(const ShelfOwner& owner, const StepKey& key,
                                    const std::vector<MemoryFile>& files) {
    forget_if([&](const FileKey& of, const File& file) {
        if (sealed_ == of.first) {
            return false;
        }
        if (owner.kind == ShelfOwner::Kind::Fetched) {
            return file.owner == owner && of.first == key && is_named(files, of.second);
        }
        return of.first.generation < key.generation ||
               (file.owner == owner && (of.first != key || is_named(files, of.second)));
    });
}

Result<void> CheckpointShelf::finish(const ShelfOwner& owner, const StepKey& key,
                                     const std::vector<MemoryFile>& files) {
    for (const MemoryFile& file : files) {
        const auto found = files_.find({key, file.name});
        if (found == files_.end() || found->second.owner != owner) {
            return Error{ErrorCode::Refused,
                         fmt::format("{} of {} was not begun here", file.name, text_of(key))};
        }
        if (found->second.what.size != file.size || file.xxh3_128.empty()) {
            return Error{ErrorCode::Refused,
                         fmt::format("{} of {} was begun with {} bytes, and has {} and the "
                                     "checksum \"{}\" now",
                                     file.name, text_of(key), found->second.what.size, file.size,
                                     file.xxh3_128)};
        }
    }
    for (const MemoryFile& file : files) {
        files_.at({key, file.name}).what.xxh3_128 = file.xxh3_128;
    }
    return {};
}

Result<void> CheckpointShelf::seal(Generation by, const StepKey& key) {
    if (by < newest_) {
        return Error{ErrorCode::Refused, fmt::format("generation {} is over: it cannot seal {}",
                                                     by.value(), text_of(key))};
    }
    if (sealed_ && key < *sealed_ && sealed_->generation == by) {
        return Error{ErrorCode::Refused, fmt::format("{} is older than {}, which is sealed",
                                                     text_of(key), text_of(*sealed_))};
    }
    for (const auto& [of, file] : files_) {
        // A copy that is still under way is not missed: its writer has it.
        if (of.first == key && !file.is_written() && file.owner.kind == ShelfOwner::Kind::Worker) {
            return Error{ErrorCode::Refused,
                         fmt::format("{} of {} is not written yet", of.second, text_of(key))};
        }
    }
    sealed_ = key;
    forget_if([&](const FileKey& of, const File& /*file*/) {
        const bool is_begun_since =
            of.first.generation >= by && (by != key.generation || key < of.first);
        return of.first != key && !is_begun_since;
    });
    return {};
}

void CheckpointShelf::abandon(const ShelfOwner& owner) {
    forget_if([&](const FileKey& /*of*/, const File& file) {
        return file.owner == owner && !file.is_written();
    });
}

void CheckpointShelf::abandon_unmade(const ShelfOwner& owner) {
    for (auto& [of, file] : files_) {
        file.is_dropped = file.is_dropped || (file.owner == owner && !file.is_written());
    }
    abandon(owner);
}

bool CheckpointShelf::is_being_written(const ShelfOwner& owner, const StepKey& key,
                                       const std::string& name, BufferId buffer) const {
    const auto found = files_.find({key, name});
    return found != files_.end() && found->second.owner == owner &&
           found->second.buffer == buffer && !found->second.is_written();
}

std::vector<worker::MemoryStep> CheckpointShelf::list() const {
    std::vector<worker::MemoryStep> steps;
    for (const auto& [of, file] : files_) {
        if (!file.is_written()) {
            continue;
        }
        const StepKey& key = of.first;
        if (steps.empty() || steps.back().key != key) {
            steps.push_back({.key = key, .is_sealed = sealed_ == key});
        }
        steps.back().files.push_back(file.what);
    }
    return steps;
}

std::optional<CheckpointShelf::Found> CheckpointShelf::find(const StepKey& key,
                                                            const std::string& name) const {
    const auto found = files_.find({key, name});
    if (found == files_.end() || !found->second.is_written()) {
        return std::nullopt;
    }
    return Found{.buffer = found->second.buffer, .file = found->second.what};
}

std::optional<CheckpointShelf::Found> CheckpointShelf::open(const StepKey& key,
                                                            const std::string& name) {
    std::optional<Found> found = find(key, name);
    if (found) {
        files_.at({key, name}).is_dropped = true;
    }
    return found;
}

template <typename Predicate>
void CheckpointShelf::forget_if(Predicate is_forgotten) {
    std::erase_if(files_, [&](const auto& entry) {
        const bool goes = is_forgotten(entry.first, entry.second);
        if (goes) {
            release(entry.first.first, entry.second);
        }
        return goes;
    });
}

void CheckpointShelf::release(const StepKey& key, const File& file) {
    bytes_in_files_ -= file.what.size;
    if (file.is_dropped) {
        dropped_.push_back(file.buffer);
        return;
    }
    const bool is_workers = file.owner.kind == ShelfOwner::Kind::Worker;
    free_.push_back({.buffer = file.buffer,
                     .size = file.what.size,
                     .writer = is_workers ? std::optional(file.owner.rank) : std::nullopt,
                     .generation = key.generation});
    bytes_free_ += file.what.size;
}

}  // namespace ddprun::agent
