#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "worker_runtime/comm/process_group.hpp"

namespace ddprun::worker {

/// Parameters of one type, one after the other in the memory of `flat`. Rank r has the part with
/// number r of `world` equal ones.
struct ParameterBucket {
    struct Place {
        std::string name;
        torch::Tensor parameter;
        std::int64_t offset = 0;  ///< in `flat`, in elements
    };
    std::vector<Place> places;
    torch::Tensor flat;  ///< [world * n]
    torch::Tensor own;   ///< [n], this rank's part
};

/// Averages gradients during backward, bucket by bucket, and keeps this rank's part of them
/// (ZeRO-2). A parameter has no gradient of its own any more once its bucket is complete. Buckets
/// go from the last to the first, on all ranks alike. Passes without clear() between them add up.
/// One thread, or autograd's while that one waits in backward(). Throws what LibTorch throws.
class ShardedGradients {
public:
    /// `buckets` outlive this, and so do their parameters, each of which gets a hook. Refuses a
    /// parameter that another one averages, by name.
    ShardedGradients(ProcessGroup group, const std::vector<ParameterBucket>& buckets);
    ~ShardedGradients();
    ShardedGradients(const ShardedGradients&) = delete;
    ShardedGradients& operator=(const ShardedGradients&) = delete;

    /// Waits until the gradients of all passes are there. Throws if a parameter took no part in the
    /// last pass.
    void finish();
    /// This rank's part of the gradients of that bucket, [n]; undefined if there are none.
    [[nodiscard]] const torch::Tensor& own(std::size_t bucket) const {
        return buckets_[bucket].is_there ? buckets_[bucket].own : kNone;
    }
    void clear();

private:
    class Hook;

    /// Buckets whose sums are under way at once: one travels while the next one is filled.
    static constexpr std::size_t kUnderWayMax = 2;
    static inline const torch::Tensor kNone;

    /// Memory for a bucket under way, in bytes, as large as the largest so far. It is kept from
    /// step to step: new memory costs page faults.
    struct Room {
        torch::Tensor flat;      ///< what is sent
        torch::Tensor received;  ///< on CPUs
        torch::Tensor average;
    };

    struct Bucket {
        const ParameterBucket* parameters = nullptr;
        std::vector<bool> is_missing;  ///< in this pass, by place
        std::optional<Pending<void>> pending;
        torch::Tensor average;  ///< of this pass, to be added to `own`; undefined in the first pass
        torch::Tensor own;
        bool is_there = false;  ///< `own` has a gradient
    };

    void begin_pass();
    void take(Bucket& bucket, std::size_t place);
    void reduce(Bucket& bucket);
    /// Waits for a bucket's reduction, if one is under way, and adds what it gives.
    static void collect(Bucket& bucket);

    ProcessGroup group_;
    std::vector<Bucket> buckets_;
    bool has_begun_ = false;         ///< a pass has, and is not over
    std::size_t left_ = 0;           ///< buckets of this pass that are not yet sent
    std::deque<Bucket*> under_way_;  ///< the oldest comes first
    std::array<Room, kUnderWayMax> rooms_;
    std::size_t reductions_ = 0;  ///< so far; they take the rooms in turn
};

}  // namespace ddprun::worker
