// A step of AdamW where its numbers do not matter. Include it after `import tessera.ops;`.
#pragma once

namespace tessera::testing {

inline constexpr ops::AdamStep some_adamw_step{.lr = 0.1,
                                               .beta1 = 0.9,
                                               .beta2 = 0.95,
                                               .eps = 1e-8,
                                               .weight_decay = 0,
                                               .grad_scale = 1,
                                               .step = 1};

}  // namespace tessera::testing
