#pragma once

namespace ddprun::launcher {

/// Whether a daemon that has ended is started again: always, until so many in a row have ended
/// before they listened. Another one would end the same way. Pure.
class DaemonStarts {
public:
    explicit DaemonStarts(int in_vain_max) : in_vain_max_(in_vain_max) {}

    /// The daemon started last is gone.
    void ended(bool has_listened) { in_vain_ = has_listened ? 0 : in_vain_ + 1; }

    [[nodiscard]] bool may_start() const { return in_vain_ < in_vain_max_; }

private:
    int in_vain_max_;
    int in_vain_ = 0;  ///< that ended before they listened, since one that did
};

}  // namespace ddprun::launcher
