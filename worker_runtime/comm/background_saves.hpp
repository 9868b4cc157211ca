#pragma once

#include <functional>
#include <map>

namespace ddprun::worker {

/// The saves that go on beside the training, of a group and its sub-groups, by the object that runs
/// each. That object adds and removes its entry on the training's thread.
struct BackgroundSaves {
    struct Save {
        /// Waits until parameters and the optimizers' state are copied.
        std::function<void()> wait_for_copy;
        /// Waits until the save has ended.
        std::function<void()> wait_for_end;
    };
    std::map<const void*, Save> saves;
    /// True once ranks have ended a join(): their optimizers' states may differ from then on.
    bool have_ranks_joined = false;

    /// Waits until all have copied what an optimizer's step changes. Engines call it at the end of
    /// a backward pass that averages gradients, and a sharded optimizer before its step.
    void before_step() const {
        for (const auto& [owner, save] : saves) {
            save.wait_for_copy();
        }
    }
    /// Waits until all have ended. Called before the group ends.
    void before_end() const {
        for (const auto& [owner, save] : saves) {
            save.wait_for_end();
        }
    }
};

}  // namespace ddprun::worker
