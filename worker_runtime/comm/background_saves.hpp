#pragma once

#include <functional>
#include <map>

namespace ddprun::worker {

/// Saves that go on beside the training, of a group and its sub-groups, by the object that saves.
/// Its owner adds and removes entries on the training's thread.
struct BackgroundSaves {
    struct Save {
        /// Waits until parameters and the optimizers' state are copied.
        std::function<void()> wait_for_copy;
        /// Waits until the save has ended.
        std::function<void()> wait_for_end;
    };
    std::map<const void*, Save> saves;

    /// Before an optimizer's step. Engines call it at the end of a backward pass that averages.
    void before_step() const {
        for (const auto& [owner, save] : saves) {
            save.wait_for_copy();
        }
    }
    /// Before the group ends.
    void before_end() const {
        for (const auto& [owner, save] : saves) {
            save.wait_for_end();
        }
    }
};

}  // namespace ddprun::worker
