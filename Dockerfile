# syntax=docker/dockerfile:1

# The broker as one static binary in an otherwise empty image: no shell, no package manager, a uid of its own, and
# nothing to write to but /data. Run it with a read-only root file system:
#
#   docker build -t skein .
#   docker run --read-only -v skein-data:/data -p 9250-9254:9250-9254 skein

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.release=${VERSION}" -o /out/broker ./cmd/broker
RUN mkdir -p /out/data

FROM scratch
COPY --from=build /out/broker /broker
COPY --from=build --chown=65532:65532 /out/data /data
COPY LICENSE /LICENSE
USER 65532:65532
ENV SKEIN_DATA_DIR=/data
VOLUME /data
EXPOSE 9250 9251 9252 9253 9254
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 CMD ["/broker", "cluster", "status"]
ENTRYPOINT ["/broker"]
CMD ["serve"]
