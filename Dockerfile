# Serves an export of --do_export with TensorFlow Serving:
#
#     docker build --build-arg EXPORT=sst2_output/export --build-arg NAME=sst2 \
#         --tag sst2 .
#     docker run --rm -p 8501:8501 sst2
#
# EXPORT is a path in the build context, the folder of versions. VERSION is a tag
# of the image tensorflow/serving, 2.12 or newer. Port 8500 is gRPC, 8501 REST.
ARG VERSION=latest
FROM tensorflow/serving:${VERSION}

ARG EXPORT
ARG NAME=model
COPY ${EXPORT} /models/${NAME}
ENV MODEL_NAME=${NAME}
EXPOSE 8500 8501
