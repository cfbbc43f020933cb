// The rates of MPI's own collectives, to compare Tessera's over MPI with: mpirun -n 4 bare_mpi
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <vector>

namespace {

/// Seconds per call of the slowest rank in the fastest of several batches.
double measure(int calls, const std::function<void()>& call) {
  double best = 1e9;
  for (int batch = 0; batch < 15; ++batch) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int i = 0; i < calls; ++i) {
      call();
    }
    double seconds = (MPI_Wtime() - begin) / calls;
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    best = batch == 0 ? best : std::min(best, seconds);  // the first warms up
  }
  return best;
}

}  // namespace

int main(int arguments, char** values) {
  MPI_Init(&arguments, &values);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const std::size_t bytes :
       {std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{16} << 20}) {
    const int row = static_cast<int>(bytes / 4) / size;
    std::vector<float> whole(bytes / 4);
    std::vector<float> part(static_cast<std::size_t>(row));
    const int calls = std::clamp(static_cast<int>((std::size_t{4} << 20) / bytes), 1, 50);
    const double gather = measure(calls, [&] {
      MPI_Allgather(part.data(), row, MPI_FLOAT, whole.data(), row, MPI_FLOAT, MPI_COMM_WORLD);
    });
    const double scatter = measure(calls, [&] {
      MPI_Reduce_scatter_block(whole.data(), part.data(), row, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    });
    const double reduce = measure(calls, [&] {
      MPI_Allreduce(MPI_IN_PLACE, whole.data(), row * size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    });
    if (rank == 0) {
      std::printf("%9zu  allgather %10.1f us  reduce_scatter %10.1f us  allreduce %10.1f us\n",
                  bytes, gather * 1e6, scatter * 1e6, reduce * 1e6);
    }
  }
  MPI_Finalize();
  return 0;
}
