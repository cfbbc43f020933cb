// A program whose build says nothing but that it is linked to Tessera.
#include <cstdio>

import tessera.base;

int main() {
  std::printf("C++%d, f32 has %d bytes\n", static_cast<int>(__cplusplus / 100 % 100),
              static_cast<int>(tessera::size_of(tessera::DType::f32)));
}
