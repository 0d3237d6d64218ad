/* peer_comm_mpi.c - the same commands answered by MPI: mpirun peer_comm_mpi DIR NAME. See bench_comm.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES (64L << 20)

int main(int argc, char **argv)
{
    char path[512], line[128], name[32];
    long bytes;
    int rank, size, repeats;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    snprintf(path, sizeof path, "%s/%s.%d", argv[1], argv[2], rank);
    FILE *commands = fopen(path, "r");
    float *from = malloc(MOST_BYTES), *to = malloc(MOST_BYTES);
    if (commands == NULL || from == NULL || to == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(from, 0, MOST_BYTES);
    memset(to, 0, MOST_BYTES);
    while (fgets(line, sizeof line, commands) != NULL && sscanf(line, "%31s %ld %d", name, &bytes, &repeats) == 3) {
        const int count = (int)(bytes / 4), piece = count / size;
        for (int i = -1; i < repeats; i++) {
            double mine, slowest;
            MPI_Barrier(MPI_COMM_WORLD);
            mine = MPI_Wtime();
            if (strcmp(name, "all_gather") == 0)
                MPI_Allgather(from, piece, MPI_FLOAT, to, piece, MPI_FLOAT, MPI_COMM_WORLD);
            else if (strcmp(name, "reduce_scatter") == 0)
                MPI_Reduce_scatter_block(from, to, piece, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            else
                MPI_Allreduce(from, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            mine = MPI_Wtime() - mine;
            MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            if (i >= 0 && rank == 0)
                printf("%.9f ", slowest);
        }
        if (rank == 0)
            printf("\n");
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
