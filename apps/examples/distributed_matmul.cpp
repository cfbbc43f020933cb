// A matrix product whose operands lie on a 2 x 2 mesh, and its gradients: 4 ranks, each a process.
// Prints what every step leaves on the ranks and what had to be communicated.
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;

using namespace tessera;

namespace {

/// The largest difference between two plain tensors.
double distance(const Tensor& a, const Tensor& b) {
  return ops::amax(ops::abs(ops::sub(a, b))).item();
}

int run() {
  const DeviceMesh mesh = DeviceMesh::make({"rows", "columns"}, {2, 2});
  const MeshScope scope(mesh);  // placements without a mesh are of this one
  RandomStream& stream = random_stream();

  // Each rank makes its own part only; the numbers are those of one device.
  Tensor a = distributed_normal({6, 10}, 0, 1, Layout::make({Shard(0), Replicate()}), stream);
  Tensor b = distributed_normal({10, 8}, 0, 1, Layout::make({Replicate(), Shard(1)}), stream);
  a.set_requires_grad();
  b.set_requires_grad();

  const CommunicationReport report;
  const Tensor c = ops::mm(a, b);  // every rank has what its block of c needs
  backward(ops::sum(ops::square(c)));
  // The gradient of a is a sum over the columns of c, which lie along axis "columns": each rank
  // holds a term, until somebody asks for the sum.
  const std::string arrived = to_string(a.grad().layout());
  const Tensor gradient_a = redistribute(a.grad(), a.layout());
  const Tensor gradient_b = redistribute(b.grad(), b.layout());
  const std::string communicated = report.to_string();

  // The product on one device. These gather, so they come after the report was read.
  Tensor leaf_a = full_tensor(detached(a));
  Tensor leaf_b = full_tensor(detached(b));
  leaf_a.set_requires_grad();
  leaf_b.set_requires_grad();
  const Tensor plain_c = ops::mm(leaf_a, leaf_b);
  backward(ops::sum(ops::square(plain_c)));
  const double error = std::fmax(distance(full_tensor(detached(c)), detached(plain_c)),
                                 std::fmax(distance(full_tensor(gradient_a), leaf_a.grad()),
                                           distance(full_tensor(gradient_b), leaf_b.grad())));
  if (current_rank() == 0) {
    std::printf("a is %s\nb is %s\nc is %s\n", to_string(*a.spec()).c_str(),
                to_string(*b.spec()).c_str(), to_string(*c.spec()).c_str());
    std::printf("the gradient of a arrived as %s\ncommunicated:\n%s", arrived.c_str(),
                communicated.c_str());
    std::printf("largest difference from one device: %.1e\n", error);
  }
  return error < 1e-4 ? 0 : 1;
}

}  // namespace

int main() {
  return collective::launch({.ranks = 4}, [](collective::World&) { return run(); });
}
