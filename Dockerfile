# The image of sweep: a static binary and the certificates to check others by, run as
# nobody in particular. `make image` lays out the context with the Go toolchain at hand and
# builds it, without any other image. An exec sink needs one with its programs in it:
# make image BASE=debian:13
ARG BASE=scratch
FROM ${BASE}
COPY sweep /usr/local/bin/sweep
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
USER 65532:65532
# `docker stop` waits 10 s before it kills: the drain must be over by then. Raise both together.
ENV SWEEP_DRAIN_TIMEOUT=8s
ENTRYPOINT ["/usr/local/bin/sweep"]
CMD ["run"]
