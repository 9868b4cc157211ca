#pragma once

namespace ddprun {

/// Sets on the listening TCP socket `listener`, which is bound, what each connection that is
/// accepted from it inherits, so that none costs a call of its own: TCP_NODELAY, and on a loopback
/// address the cheapest congestion control. An option that the kernel refuses stays as it was: the
/// options only make connections faster.
void set_inherited_options(int listener);

}  // namespace ddprun
