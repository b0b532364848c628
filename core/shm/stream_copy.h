// A copy whose destination goes past the caches: for results far larger than they are, where ordinary stores
// would first read every line that they are about to overwrite.
#pragma once

#include <cstddef>

namespace cleave::shm {

// From this size of a rank's result on, collectives copy into it by copy_streaming().
inline constexpr size_t kStreamFrom = size_t{32} << 20;

// As memcpy. Visible to other threads only after their next synchronisation with this one, as usual.
void copy_streaming(void* to, const void* from, size_t bytes);

}  // namespace cleave::shm
